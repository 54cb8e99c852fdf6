"""Templates of pages and reports: numbers as people read them, and charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastrec.platform.specs.shape import DONE, MigrationSeen
from elastrec.platform.specs.text import plain_words
from elastrec.platform.specs.text.some import counted

if TYPE_CHECKING:
    from jinja2 import Environment

NOTHING = "–"
_CHART_POINTS = 300
_MOST_ROWS = 40


def count(value: float | None) -> str:
    """`1,234,567`."""
    return NOTHING if value is None else f"{value:,.0f}"


def figure(value: float | None) -> str:
    """A figure of quality, with four decimals."""
    return NOTHING if value is None or math.isnan(value) else f"{value:.4f}"


def size(value: float | None) -> str:
    """Bytes as `512 MiB`."""
    if value is None:
        return NOTHING
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def duration(value: float | None) -> str:
    """Seconds as `12 s`, `3 min 20 s`, `2 h 05 min`."""
    if value is None:
        return NOTHING
    seconds = int(value)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


def tenths(value: float | None, unit: str = "s", absent: str = "unknown") -> str:
    """A short time or amount as `1,234.5 s`."""
    return absent if value is None else f"{value:,.1f} {unit}".rstrip()


def money(value: float, currency: str) -> str:
    """An amount as `1,234.50 EUR`; below 1 with three digits, as small jobs cost fractions of a cent."""
    # Decimal writes what is very small without an exponent.
    return f"{value:,.2f} {currency}" if value >= 1 else f"{Decimal(f'{value:.3g}'):f} {currency}"


def moment(unix_seconds: float | None) -> str:
    """`2026-01-31 07:05:09`, UTC."""
    return NOTHING if unix_seconds is None else f"{datetime.fromtimestamp(unix_seconds, UTC):%Y-%m-%d %H:%M:%S}"


def percent(value: float | None) -> str:
    """A share of 0 to 1 as `37 %`."""
    return NOTHING if value is None else f"{100 * value:.0f} %"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


@dataclass(frozen=True)
class Chart:
    """A metric by samples trained.

    Attributes:
        points: of an SVG polyline in a box of 1000 × 100, y downwards.
        low, high: the least and the largest value, as text; last: the largest number of samples.
    """

    title: str
    points: str
    low: str
    high: str
    last: int

    @staticmethod
    def of(title: str, series: Sequence[tuple[int, float]]) -> Chart | None:
        """None where fewer than two points are known."""
        drawn = _with_extremes([point for point in series if math.isfinite(point[1])])
        if len(drawn) < 2:
            return None
        first, last = drawn[0][0], drawn[-1][0]
        low, high = min(value for _, value in drawn), max(value for _, value in drawn)
        across, height = max(1, last - first), (high - low) or 1.0
        points = " ".join(
            f"{1000 * (step - first) / across:.1f},{95 - 90 * (value - low) / height:.1f}" for step, value in drawn
        )
        return Chart(title, points, _short(low), _short(high), last)


def _with_extremes(points: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
    """At most some 300 points by increasing step: of a longer series the first, the last, and the least and the largest
    value of each of 150 parts, so that a line through them shows every peak."""
    if len(points) <= _CHART_POINTS:
        return points
    length = math.ceil(len(points) / (_CHART_POINTS // 2))
    parts = [points[begin : begin + length] for begin in range(0, len(points), length)]
    extremes = {choose(part, key=lambda point: point[1]) for part in parts for choose in (min, max)}
    return sorted({points[0], points[-1], *extremes})


@dataclass(frozen=True)
class Bar:
    """A part of a row of a Gantt chart: seconds from the left edge, and what it was: `serves`, `starts`, `copies`."""

    begin: float
    seconds: float
    what: str


@dataclass(frozen=True)
class Gantt:
    """A migration of parameter servers: a row per server, and the hand-over across all of them.

    Attributes:
        seconds: from the left edge to the right one.
        rows: at most 40, some of them of several servers if there are more.
        hand_over: begin and length, seconds; None: rows were not handed over yet.
    """

    title: str
    note: str
    seconds: float
    rows: list[tuple[str, list[Bar]]]
    hand_over: tuple[float, float] | None = None

    @staticmethod
    def of(migration: MigrationSeen, now_seconds: float | None = None) -> Gantt:
        """The chart of one migration.

        Args:
            now_seconds: on the job's clock: the right edge of a migration that is under way; default: its last stage.
        """
        stages = (migration.copying_seconds, migration.handing_over_seconds, migration.ended_seconds, now_seconds)
        end = max(at for at in (migration.begun_seconds, *stages) if at is not None)
        if migration.ended_seconds is not None:
            end = migration.ended_seconds
        margin = max(0.1, 0.08 * (end - migration.begun_seconds))
        left, right = migration.begun_seconds - margin, end + (margin if migration.ended_seconds is not None else 0.0)

        def bar(begin: float, until: float | None, what: str) -> list[Bar]:
            until = right if until is None else until
            return [Bar(begin - left, until - begin, what)] if until > begin else []

        is_done = migration.outcome == DONE
        rows = list[tuple[str, list[Bar]]]()
        for server in migration.servers:
            if not server.is_new:
                bars = bar(left, migration.ended_seconds if server.leaves and is_done else None, "serves")
            else:
                ups = (server.up_seconds, migration.copying_seconds, migration.ended_seconds)
                up = next((at for at in ups if at is not None), None)
                bars = bar(migration.begun_seconds, up, "starts")
                if migration.copying_seconds is not None:
                    copied = migration.handing_over_seconds or migration.ended_seconds
                    bars += bar(migration.copying_seconds, copied, "copies")
                if is_done and migration.ended_seconds is not None:
                    bars += bar(migration.ended_seconds, None, "serves")
            rows.append((server.name, bars))
        hand_over, pause = None, migration.pause_seconds
        if migration.handing_over_seconds is not None:
            until = migration.ended_seconds if migration.ended_seconds is not None else right
            hand_over = (migration.handing_over_seconds - left, until - migration.handing_over_seconds)
        note = migration.outcome if pause is None else f"{end - migration.begun_seconds:.1f} s, hand-over {pause:.2f} s"
        title = f"{migration.servers_before} → {migration.servers_after} parameter servers"
        return Gantt(title, note, right - left, _some_rows(rows), hand_over)


def _some_rows(rows: list[tuple[str, list[Bar]]]) -> list[tuple[str, list[Bar]]]:
    """At most 40 rows: of more, servers with equal bars are one row, and what is then too much is only counted."""
    if len(rows) <= _MOST_ROWS:
        return rows
    alike: dict[tuple[Bar, ...], list[str]] = {}
    for name, bars in rows:
        alike.setdefault(tuple(bars), []).append(name)
    shown = [
        (names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more", list(bars))
        for bars, names in alike.items()
    ]
    if len(shown) <= _MOST_ROWS:
        return shown
    hidden = sum(len(names) for names in list(alike.values())[_MOST_ROWS - 1 :])
    return [*shown[: _MOST_ROWS - 1], (f"{hidden} more", [])]


def cores(number: float) -> str:
    """`1 core`, `0.5 cores`."""
    return f"{number:g} core" + ("" if number == 1 else "s")


FILTERS: dict[str, Callable[..., Any]] = {
    "cores": cores,
    "count": count,
    "figure": figure,
    "size": size,
    "duration": duration,
    "tenths": tenths,
    "money": money,
    "moment": moment,
    "percent": percent,
    "counted": counted,
    "gantt": Gantt.of,
    "requester": plain_words.requester,
    "role": plain_words.role,
}


def templates_in(folder: Path) -> Environment:
    """The HTML templates of a folder and of this room, with FILTERS. Values are escaped; a missing name is an error."""
    # Loaded here: masters import this room, and draw nothing.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = Environment(
        loader=FileSystemLoader([folder, Path(__file__).parent / "templates"]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(FILTERS)
    return templates
