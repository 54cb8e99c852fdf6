"""Tables for people: cells are never truncated; columns that do not fit into the terminal are left out, and a line
names them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

_GAP = 2


@dataclass
class Columns:
    """Rows of text under headings.

    Attributes:
        headings: from left to right.
        expendable: headings of columns that may be left out on a narrow terminal, the least important one first.
    """

    headings: tuple[str, ...]
    expendable: tuple[str, ...] = ()
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def add(self, *cells: str) -> None:
        """Adds a row with a cell for each heading."""
        self.rows.append(cells)

    def width(self, headings: Sequence[str]) -> int:
        """Characters that a table of some of the columns needs."""
        chosen = [self.headings.index(heading) for heading in headings]
        return sum(max(len(row[at]) for row in [self.headings, *self.rows]) + _GAP for at in chosen) - _GAP

    def fitting(self, width: int | None) -> tuple[list[str], list[str]]:
        """The headings that fit into a width (None: any) and those left out."""
        kept, left_out = list(self.headings), []
        for heading in self.expendable:
            if width is None or self.width(kept) <= width:
                break
            kept.remove(heading)
            left_out.append(heading)
        return kept, left_out

    def render(self, width: int | None) -> RenderableType:
        """The table, with a line below it if columns were left out; rows that are still too wide wrap."""
        kept, left_out = self.fitting(width)
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
        for heading in kept:
            table.add_column(heading, overflow="fold")
        chosen = [self.headings.index(heading) for heading in kept]
        for row in self.rows:
            table.add_row(*(row[at] for at in chosen))
        if not left_out:
            return table
        return Group(table, Text(f"left out, because the terminal is narrow: {', '.join(left_out)}", style="dim"))
