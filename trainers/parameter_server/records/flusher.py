"""Copies parts from memory to the store in a process of its own with low priority."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from elastrec.checkpoints import StoreError
from elastrec.checkpoints.flash import HeldPart
from elastrec.platform.specs.errors import CheckpointError

_LOOK_SECONDS = 0.2
_READ_BYTES = 65_536


class FlushOrder(msgspec.Struct, frozen=True):
    """Copy this part to its place in the store."""

    part: HeldPart


class FlushReport(msgspec.Struct, frozen=True):
    """Progress of a copy; `is_done` when it is durable, `problem` if it failed.

    Attributes:
        store_away: see SavedPart.
    """

    written_bytes: int = 0
    is_done: bool = False
    problem: str = ""
    store_away: bool = False


class Flusher:
    """The parent's side of `python -m elastrec.trainers.parameter_server.records.flush`. One copy at a time.

    Args:
        path: of the memory.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""

    def flush(
        self, part: HeldPart, is_wanted: Callable[[], bool] = lambda: True, progress: Callable[[], None] = lambda: None
    ) -> None:
        """Waits until the part is durable in the store.

        Args:
            is_wanted: called several times per second; an unwanted copy is ended together with its process, because a
                store may hang.
            progress: called whenever more has been written.

        Raises:
            StoreError: the store is unreachable.
            CheckpointError: it refused, the part is damaged or no longer wanted, or the process was killed.
        """
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(FlushOrder(part)) + b"\n")
            process.stdin.flush()
            while (report := self._read(process)) is None or not (report.is_done or report.problem):
                if report is not None:
                    progress()
                # Also while there is progress: a part of some gigabytes would keep the next save waiting.
                if not is_wanted():
                    self.close()
                    raise CheckpointError(f"the part {part.file} of {part.uri} is not wanted any more")
        except (BrokenPipeError, EOFError):
            code = process.wait()
            self.close()
            raise CheckpointError(
                f"{part.uri}/{part.file}: the process that brings parts to the store has ended ({code})"
            ) from None
        if report.problem:
            raise (StoreError if report.store_away else CheckpointError)(report.problem)

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "elastrec.trainers.parameter_server.records.flush", str(self._path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._unread = b""
        return self._process

    def _read(self, process: subprocess.Popen[bytes]) -> FlushReport | None:
        """The next report; None: there is none yet."""
        assert process.stdout is not None
        if b"\n" not in self._unread:
            if not select.select([process.stdout], [], [], _LOOK_SECONDS)[0]:
                return None
            data = os.read(process.stdout.fileno(), _READ_BYTES)
            if not data:
                raise EOFError
            self._unread += data
        line, newline, rest = self._unread.partition(b"\n")
        if not newline:
            return None
        self._unread = rest
        return msgspec.json.decode(line, type=FlushReport)

    def close(self) -> None:
        """Ends the process, also in the middle of a copy."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    # The buffer may still contain an order that the process did not read before its end.
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()
