"""Extracts the instructions of a page and executes them: files to write, commands to run, and expected output.

A comment before a fenced block says what the block is: `<!-- file: NAME -->`, `<!-- run -->`, or `<!-- shows -->` for
output of the preceding commands: lines in this order, in which … matches any text.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
_BLOCK = re.compile(r"^<!-- (run|shows|file: (\S+)) -->\n```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_END = "end-of-the-block"


@dataclass(frozen=True)
class Step:
    """One block: kind `file`, `run` or `shows`."""

    kind: str
    text: str
    name: str = ""
    line: int = 0


def steps_of(page: Path) -> list[Step]:
    """The marked blocks of a page, from top to bottom."""
    content = page.read_text(encoding="utf-8")
    return [
        Step(kind.partition(":")[0], match[3], match[2] or "", content.count("\n", 0, match.start()) + 1)
        for match in _BLOCK.finditer(content)
        for kind in [match[1]]
    ]


def missing_lines(wanted: str, output: str) -> list[str]:
    """The lines of a `shows` block that do not come, in their order, in an output."""
    lines = iter([" ".join(line.split()) for line in output.splitlines()])
    missing = []
    for line in filter(None, (" ".join(line.split()) for line in wanted.splitlines())):
        pattern = ".*".join(re.escape(part.strip()) for part in line.split("…"))
        if not any(re.fullmatch(pattern, found) for found in lines):
            missing.append(line)
            break
    return missing


@dataclass
class Shell:
    """One bash in a folder, with nothing set but `HOME` and `PATH`; a context manager."""

    folder: Path
    home: Path
    output: str = ""
    _process: subprocess.Popen[str] | None = field(default=None, repr=False)

    def __enter__(self) -> Shell:
        environment = {"HOME": str(self.home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"], cwd=self.folder, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self._send("set -e -o pipefail")
        return self

    def run(self, text: str) -> str:
        """The output of a block.

        Raises:
            AssertionError: a command failed.
        """
        self.output = ""
        self._send(text)
        self._send(f"echo {_END}")
        while line := self._heard():
            if line.strip() == _END:
                return self.output
            self.output += line
        raise AssertionError(f"a command failed in:\n{text}\nwhich printed:\n{self.output}")

    def _send(self, text: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def _heard(self) -> str:
        """The next line; empty when bash has ended."""
        assert self._process is not None and self._process.stdout is not None
        return self._process.stdout.readline()

    def __exit__(self, *error: object) -> None:
        assert self._process is not None and self._process.stdin is not None
        # With the command that it may be at: left alone, that would start an agent again after ours was stopped.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


def follow(page: Path, shell: Shell) -> None:
    """Executes the instructions of a page.

    Raises:
        AssertionError: a command failed, or its output differs from the page; contains the line number.
    """
    for step in steps_of(page):
        if step.kind == "file":
            (shell.folder / step.name).parent.mkdir(parents=True, exist_ok=True)
            (shell.folder / step.name).write_text(step.text)
        elif step.kind == "run":
            shell.run(step.text)
        else:
            missing = missing_lines(step.text, shell.output)
            assert not missing, f"{page.name}:{step.line}: {missing} is not in:\n{shell.output}"
