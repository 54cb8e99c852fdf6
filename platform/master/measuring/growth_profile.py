"""The growth of embedding tables with the trained samples, to which the memory forecast is fitted. Pure.

Distances between points increase, because a power law is fitted to them; there is the same number of points for every
doubling of the samples. After a rollback, the profile starts again.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from elastrec.platform.specs.metrics import COUNTS_APART
from elastrec.platform.transport.messages.job import TableUsage
from elastrec.platform.transport.messages.profile import TableGrowth

_MOST_POINTS = 256


class GrowthPoint(msgspec.Struct, frozen=True):
    """The rows and bytes of all servers together after a number of samples."""

    samples: int
    tables: dict[str, TableUsage]


class GrowthProfile:
    """One job's tables. Not thread-safe: its owner locks."""

    def __init__(self) -> None:
        self._points: list[GrowthPoint] = []
        self._generation = -1

    def points(self) -> tuple[int, list[GrowthPoint]]:
        """The job's generation and its points, for `recall`."""
        return self._generation, list(self._points)

    def recall(self, generation: int, points: Sequence[GrowthPoint]) -> None:
        """Goes on where the profile of a master before this one ended."""
        self._generation, self._points = generation, list(points)

    def add(self, samples: int, generation: int, tables: Sequence[TableUsage]) -> None:
        """Adds the rows and bytes of all servers together after a number of samples.

        Args:
            generation: of the job; if it has changed, the tables were restored from a record.
        """
        if generation != self._generation:
            self._generation, self._points = generation, []
        if samples <= 0 or not tables:
            return
        point = GrowthPoint(samples, {usage.table: usage for usage in tables})
        if self._points and samples < self._points[-1].samples:
            return
        # The newest point is always kept, because it has the present size of the tables.
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
