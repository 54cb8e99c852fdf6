"""A child process of a benchmark, which answers a line of JSON with a line of JSON, and its resource use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from elastrec.platform.specs.environment import CORES
from elastrec.trainers.threads import process_settings


def one_core() -> dict[str, str]:
    """The settings of threads, malloc and OpenMP of a process with one core, independent of the environment.

    With one thread, CPU seconds do not depend on how many cores happen to be free.
    """
    granted = {CORES: "1"}
    return granted | process_settings(granted)


class Child:
    """The parent's handle of a running child.

    Args:
        module, arguments: what `python -m` runs; the module calls `serve`.
        environment: variables beside the parent's own.
        python: interpreter of the child; default: that of the parent.
        core: number of the core on which all threads of the child run; default: any.

    Raises:
        RuntimeError: the child ended; its messages are on standard error.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        python: str = sys.executable,
        core: int | None = None,
    ) -> None:
        pin = [] if core is None else ["taskset", "--cpu-list", str(core)]
        self._process = subprocess.Popen(
            [*pin, python, "-m", module, *arguments],
            # A crash in native code prints its stack.
            env={**os.environ, "PYTHONFAULTHANDLER": "1", **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self.hello = self._read()
        except BaseException:
            self.close()
            raise

    def ask(self, **request: Any) -> Any:
        """Sends a request and waits for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args} ended with {self._process.wait()}; see its errors above")
        return json.loads(line)

    def cpu_seconds(self) -> float:
        """CPU time of all threads of the process, in nanosecond resolution."""
        # How Linux numbers the CPU clock of another process (clock_getcpuclockid).
        return time.clock_gettime((~self._process.pid << 3) | 2)

    def resident_bytes(self) -> int:
        """Resident memory of the process, without memory that it shares through files."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("RssAnon:"))
        return int(line.split()[1]) * 1024

    def close(self) -> None:
        """Closes the child's input, which ends it; kills one that does not end."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(answers: Callable[[dict[str, Any]], Any], hello: Any) -> None:
    """The child's side: answers requests until the parent closes the pipe."""
    print(json.dumps(hello), flush=True)
    for line in sys.stdin:
        print(json.dumps(answers(json.loads(line))), flush=True)
