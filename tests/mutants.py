"""Changes the product in one place at a time, in a copy, and checks that a test fails: `make mutants`.

`mutants.toml` lists the changes: a text that occurs once in a file, its replacement, and the tests that must fail.
First, these tests must pass on the unchanged copy. Exit code 0: a test failed for every mutant; 1: a mutant survived,
could not be tried or timed out; 2: the list is wrong, or a test fails without a change.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = Path("tests/mutants.toml")
_ROOMS = ("platform", "operators", "trainers", "checkpoints", "dags")
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".mypy_cache", ".ruff_cache", ".hypothesis", "build", "dist")
_TIMEOUT_SECONDS = 600.0
_TESTS_FAILED = 1  # pytest's exit code; others say that no test was run


@dataclass(frozen=True)
class Mutant:
    """One change.

    Attributes:
        name: for `ONLY`.
        breaks: the broken promise, in words.
        file: relative to the repository.
        text: occurs exactly once in the file.
        tests: files, or tests of them (`FILE::TEST`).
    """

    name: str
    breaks: str
    file: str
    text: str
    replacement: str
    tests: tuple[str, ...]

    def problem(self, root: Path) -> str:
        """Why the mutant cannot be tried on the code in `root`; empty: it can."""
        if self.text == self.replacement:
            return "the replacement is the text itself"
        if not (root / self.file).is_file():
            return f"{self.file} does not exist"
        count = (root / self.file).read_text().count(self.text)
        if count != 1:
            return f"its text stands {count} times in {self.file}, not once"
        missing = [test for test in self.tests if not _exists(root, test)]
        return f"there is no {', '.join(missing)}" if missing or not self.tests else ""

    @contextmanager
    def applied(self, root: Path) -> Iterator[None]:
        """The code in `root` has the change meanwhile."""
        file = root / self.file
        whole, times = file.read_text(), file.stat()
        file.write_text(whole.replace(self.text, self.replacement))
        try:
            yield
        finally:
            file.write_text(whole)
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def _exists(root: Path, test: str) -> bool:
    file, _, name = test.partition("::")
    return (root / file).is_file() and (not name or f"def {name}(" in (root / file).read_text())


def load(root: Path = ROOT) -> list[Mutant]:
    """The list, in its order."""
    entries = tomllib.loads((root / LIST).read_text())["mutant"]
    return [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def run(root: Path, mutants: Sequence[Mutant], timeout_seconds: float = _TIMEOUT_SECONDS) -> int:
    """Tries mutants on a copy of `root` and prints the result of each; returns the exit code.

    Args:
        timeout_seconds: of the tests of one mutant.
    """
    if problems := [f"{mutant.name}: {problem}" for mutant in mutants if (problem := mutant.problem(root))]:
        print("\n".join(problems))
        return 2
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary:
        copy = Path(temporary) / "copy"
        shutil.copytree(root, copy, ignore=_LEFT_OUT, symlinks=True)
        environment = _environment(Path(temporary), copy)
        unchanged = sorted({test for mutant in mutants for test in mutant.tests})
        code, said, seconds = _pytest(copy, unchanged, environment, timeout_seconds * len(mutants))
        print(f"{len(unchanged)} tests or files, unchanged code: {_outcome(code)} ({seconds:.0f} s)", flush=True)
        if code != 0:
            print(said)
            return 2
        outcomes = {mutant.name: _try(mutant, copy, environment, timeout_seconds) for mutant in mutants}
    bad = [name for name, outcome in outcomes.items() if outcome != "killed"]
    print(f"{len(outcomes) - len(bad)} of {len(outcomes)} killed" + (f"; not: {', '.join(bad)}" if bad else ""))
    return 1 if bad else 0


def _try(mutant: Mutant, copy: Path, environment: dict[str, str], timeout_seconds: float) -> str:
    with mutant.applied(copy):
        code, said, seconds = _pytest(copy, mutant.tests, environment, timeout_seconds)
    outcome = {0: "survived", _TESTS_FAILED: "killed"}.get(code, _outcome(code))
    print(f"{mutant.name:6} {outcome:9} {seconds:4.0f} s  {mutant.breaks}", flush=True)
    if outcome != "killed":
        print(said, flush=True)
    return outcome


def _outcome(code: int) -> str:
    return {0: "green", _TESTS_FAILED: "red", -signal.SIGKILL: "timed out"}.get(
        code, f"no tests run (exit code {code})"
    )


def _environment(folder: Path, copy: Path) -> dict[str, str]:
    """Makes `elastrec` the package of the copy, for tests and for the processes that they start."""
    package = folder / "rooms" / "elastrec"
    package.mkdir(parents=True)
    for room in _ROOMS:
        if (copy / room).is_dir():
            (package / room).symlink_to(copy / room)
    # A compiled file is found by the time of its source, which two mutants may share.
    return {**os.environ, "PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}


def _pytest(
    copy: Path, tests: Sequence[str], environment: dict[str, str], timeout_seconds: float
) -> tuple[int, str, float]:
    """(exit code, the end of what was printed, seconds); a run that is too long is killed with all it has started."""
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", *tests]
    process = subprocess.Popen(
        command, cwd=copy, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    lines = output.decode(errors="replace").splitlines()
    return process.returncode, "\n".join(lines[-30:]), time.monotonic() - began


def main(names: Sequence[str]) -> int:
    """Tries the named mutants, or all."""
    mutants = load()
    if unknown := set(names) - {mutant.name for mutant in mutants}:
        print(f"no such mutant: {', '.join(sorted(unknown))}; there are {', '.join(m.name for m in mutants)}")
        return 2
    return run(ROOT, [mutant for mutant in mutants if not names or mutant.name in names])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
