"""Templates of pages and reports: numbers as people read them, and charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

NOTHING = "–"
_CHART_POINTS = 300


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
        finite = [point for point in series if math.isfinite(point[1])]
        drawn = finite[:: max(1, len(finite) // _CHART_POINTS)]
        if len(drawn) < 2:
            return None
        first, last = drawn[0][0], drawn[-1][0]
        low, high = min(value for _, value in drawn), max(value for _, value in drawn)
        across, height = max(1, last - first), (high - low) or 1.0
        points = " ".join(
            f"{1000 * (step - first) / across:.1f},{95 - 90 * (value - low) / height:.1f}" for step, value in drawn
        )
        return Chart(title, points, _short(low), _short(high), last)


FILTERS: dict[str, Callable[[Any], str]] = {
    "count": count,
    "figure": figure,
    "size": size,
    "duration": duration,
    "moment": moment,
    "percent": percent,
}


def templates_in(folder: Path) -> Environment:
    """The HTML templates of a folder, with FILTERS. Values are escaped; a name that is missing is an error."""
    # Loaded here: masters import this room, and draw nothing.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(FILTERS)
    return templates
