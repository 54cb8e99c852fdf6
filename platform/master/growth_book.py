"""How embedding tables grew with the samples trained: what a memory forecast is fitted to. Pure, in memory only.

Points lie ever farther apart, because a law in powers of the samples is fitted to them: a job of a day keeps as many as
one of an hour for every doubling. A restarted master begins anew, and so does a job that went back to a record.
"""

from __future__ import annotations

from collections.abc import Sequence

from elastrec.platform.transport.job_messages import TableUsage
from elastrec.platform.transport.profile_messages import TableGrowth

_APART = 1.05
_MOST_POINTS = 256


class GrowthBook:
    """One job's tables. Not safe for several threads: its owner locks."""

    def __init__(self) -> None:
        self._points: list[tuple[int, dict[str, TableUsage]]] = []
        self._generation = -1

    def add(self, samples: int, generation: int, tables: Sequence[TableUsage]) -> None:
        """Takes what all servers together hold after so many samples.

        Args:
            generation: of the job; another one than before: its tables are those of a record again.
        """
        if generation != self._generation:
            self._generation, self._points = generation, []
        if samples <= 0 or not tables:
            return
        point = (samples, {usage.table: usage for usage in tables})
        if self._points and samples < self._points[-1][0]:
            return
        # The newest point is always kept, since it says where the tables are now.
        if len(self._points) > 1 and self._points[-1][0] < _APART * self._points[-2][0]:
            self._points.pop()
        self._points.append(point)
        del self._points[:-_MOST_POINTS]

    def tables(self) -> list[TableGrowth]:
        """Every table with rows, by name."""
        if not self._points:
            return []
        found = []
        for table, last in sorted(self._points[-1][1].items()):
            known = [(samples, usages[table].rows) for samples, usages in self._points if table in usages]
            if last.rows > 0:
                found.append(
                    TableGrowth(
                        table=table,
                        samples=[samples for samples, _ in known],
                        rows=[rows for _, rows in known],
                        bytes_per_row=last.bytes / last.rows,
                    )
                )
        return found
