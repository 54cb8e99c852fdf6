"""Checks in a separate process that a job's model can be built, so that torch is never loaded in the control path.

The process takes some seconds, mostly for imports, in which the caller does other checks.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from types import TracebackType

from elastrec.platform.specs.errors import FieldProblem, SpecError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.text.loading import job_to_json

_LONGEST_SECONDS = 120.0


class ModelCheck:
    """`with ModelCheck(job) as model:` starts the check, `model.wait()` waits for its result. Leaving the block ends
    it."""

    def __init__(self, job: TrainingJob) -> None:
        self._architecture = repr(job.spec.model.architecture)
        self._deadline = time.monotonic() + _LONGEST_SECONDS
        with ExitStack() as stack:
            # Files, not pipes, because a process blocks when its pipe is full.
            given, self._output, self._errors = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
            given.write(job_to_json(job).encode())
            given.seek(0)
            command = [sys.executable, "-m", "elastrec.trainers.check"]
            self._process = subprocess.Popen(command, stdin=given, stdout=self._output, stderr=self._errors)
            self._files = stack.pop_all()

    def __enter__(self) -> ModelCheck:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._files.close()

    def wait(self) -> None:
        """Returns if the model is usable.

        Raises:
            SpecError: it cannot be built, does not compute the expected outputs, or takes too long to import.
        """
        try:
            code = self._process.wait(max(0.0, self._deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            problem = FieldProblem(
                "spec.model.architecture",
                f"{self._architecture} (still importing after {_LONGEST_SECONDS:.0f} s)",
                "a model that can be built within that time",
                "move slow work out of the module's import",
            )
            raise SpecError([problem], "the job's model") from None
        if code != 0:
            raise SpecError(self._problems(), "the job's model")

    def _problems(self) -> list[FieldProblem]:
        self._output.seek(0)
        self._errors.seek(0)
        try:
            return [FieldProblem(**problem) for problem in json.loads(self._output.read().splitlines()[-1])]
        except (ValueError, IndexError, TypeError):
            output = self._errors.read().decode(errors="replace").strip().splitlines() or ["no output"]
        return [FieldProblem("spec.model", f"{self._architecture} ({output[-1]})", "a model that can be built")]
