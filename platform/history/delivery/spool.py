"""Points that wait for the tracking server, in a file: a process that is started again goes on with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import structlog

from elastrec.platform.history.points import JsonPoint, Point

_log = structlog.get_logger(__name__)
_REWRITTEN_FROM_BYTES = 2**20


class _Line(msgspec.Struct, omit_defaults=True):
    points: list[JsonPoint] = []
    gone: int = 0
    run_id: str = ""
    next_run_id: str = ""


class Spool:
    """A log of what came and how much of it is gone, oldest first. Used by one thread at a time; its user locks.

    Written without fsync: it outlives the process, and a machine that loses power loses a chart's last points. A disk
    without room is noted once; what waits is then only in memory until a later write succeeds.

    Args:
        file: made when it does not exist; its folder must.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._is_damaged = False
        self._size = self._rewritten_size = 0
        self.run_id = self.next_run_id = ""
        self.points: list[Point] = []
        self._load()

    def _load(self) -> None:
        """Reads what an earlier process has left; the half of a line that it was writing when it died is dropped."""
        try:
            content = self._file.read_bytes()
        except FileNotFoundError:
            return
        for text in content.splitlines():
            try:
                line = msgspec.json.decode(text, type=_Line)
                points = [each.point() for each in line.points]
            except (msgspec.MsgspecError, ValueError):
                self._is_damaged = True
                continue
            self.points = [*self.points[line.gone :], *points]
            if line.run_id:
                self.run_id, self.next_run_id = line.run_id, ""
            self.next_run_id = line.next_run_id or self.next_run_id
        self._size = len(content)

    def add(self, points: Sequence[Point], waiting: Iterable[Point]) -> None:
        """Notes new points.

        Args:
            waiting: all that wait, the new ones included.
        """
        self._write(_Line(points=JsonPoint.all(points)), waiting)

    def remove(self, count: int, waiting: Iterable[Point]) -> None:
        """Notes that so many of the oldest are gone: delivered, refused, or pushed out by newer ones.

        Args:
            waiting: all that wait still.
        """
        self._write(_Line(gone=count), waiting)

    def name_run(self, run_id: str, waiting: Iterable[Point]) -> None:
        """Notes which run the points belong to."""
        self.run_id, self.next_run_id = run_id, ""
        self._write(_Line(run_id=run_id), waiting)

    def name_next_run(self, run_id: str, waiting: Iterable[Point]) -> None:
        """Notes which run the points belong to if the present one is deleted."""
        self.next_run_id = run_id
        self._write(_Line(next_run_id=run_id), waiting)

    def _write(self, line: _Line, waiting: Iterable[Point]) -> None:
        try:
            # Not at every line: what waits may be as large.
            if self._is_damaged or self._size > max(_REWRITTEN_FROM_BYTES, 2 * self._rewritten_size):
                self._rewrite(waiting)
                return
            text = msgspec.json.encode(line) + b"\n"
            with self._file.open("ab") as file:
                file.write(text)
            self._size += len(text)
        except OSError as error:
            if not self._is_damaged:
                _log.warning("history not kept", file=str(self._file), reason=str(error))
            # Part of a line may be there: the next write begins anew.
            self._is_damaged = True

    def _rewrite(self, waiting: Iterable[Point]) -> None:
        text = (
            msgspec.json.encode(_Line(points=JsonPoint.all(waiting), run_id=self.run_id, next_run_id=self.next_run_id))
            + b"\n"
        )
        new = self._file.with_suffix(".new")
        new.write_bytes(text)
        new.replace(self._file)
        self._is_damaged, self._size, self._rewritten_size = False, len(text), len(text)
