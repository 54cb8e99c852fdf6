"""How embedding tables grew with the samples trained: what a memory forecast is fitted to. Pure.

Points lie ever farther apart, because a law in powers of the samples is fitted to them: a job of a day keeps as many as
one of an hour for every doubling. A job that went back to a record begins anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from elastrec.platform.specs.metrics import COUNTS_APART
from elastrec.platform.transport.messages.job import TableUsage
from elastrec.platform.transport.messages.profile import TableGrowth

_MOST_POINTS = 256


class GrowthPoint(msgspec.Struct, frozen=True):
    """What all servers together held after so many samples."""

    samples: int
    tables: dict[str, TableUsage]


class GrowthProfile:
    """One job's tables. Not safe for several threads: its owner locks."""

    def __init__(self) -> None:
        self._points: list[GrowthPoint] = []
        self._generation = -1

    def points(self) -> tuple[int, list[GrowthPoint]]:
        """The job's generation and what is kept of it, for `recall`."""
        return self._generation, list(self._points)

    def recall(self, generation: int, points: Sequence[GrowthPoint]) -> None:
        """Goes on where the profile of a master before this one ended."""
        self._generation, self._points = generation, list(points)

    def add(self, samples: int, generation: int, tables: Sequence[TableUsage]) -> None:
        """Takes what all servers together hold after so many samples.

        Args:
            generation: of the job; another one than before: its tables are those of a record again.
        """
        if generation != self._generation:
            self._generation, self._points = generation, []
        if samples <= 0 or not tables:
            return
        point = GrowthPoint(samples, {usage.table: usage for usage in tables})
        if self._points and samples < self._points[-1].samples:
            return
        # The newest point is always kept, since it says where the tables are now.
        if len(self._points) > 1 and self._points[-1].samples < COUNTS_APART * self._points[-2].samples:
            self._points.pop()
        self._points.append(point)
        del self._points[:-_MOST_POINTS]

    def tables(self) -> list[TableGrowth]:
        """Every table with rows, by name."""
        if not self._points:
            return []
        tables = []
        for table, last in sorted(self._points[-1].tables.items()):
            measured = [(point.samples, point.tables[table].rows) for point in self._points if table in point.tables]
            if last.rows > 0:
                tables.append(
                    TableGrowth(
                        table=table,
                        samples=[samples for samples, _ in measured],
                        rows=[rows for _, rows in measured],
                        bytes_per_row=last.bytes / last.rows,
                    )
                )
        return tables
