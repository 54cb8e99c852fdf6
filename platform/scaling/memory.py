"""When servers will run out of memory, and the plan that prevents it (DLRover-RM §5.3).

    M_emb(n) = Σ_tables bytes_per_row · φ_t(n),   φ_t(n) = min(cap_t, k_t · n^b_t), b ≤ 1     n samples trained

The paper takes the growth as linear in samples; new ids become rarer, so Heaps' law is fitted per table. The band comes
from the fit's own uncertainty. Shape legend: P points of one table, N sample counts.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import cache
from typing import Any

import msgspec
import numpy as np

from elastrec.platform.scaling import growth_law
from elastrec.platform.scaling.amounts import MEMORY_STEP, refusal, require
from elastrec.platform.scaling.growth_law import heaps_law, samples_to
from elastrec.platform.scaling.model.columns import Floats
from elastrec.platform.scaling.types import MemoryCurve
from elastrec.platform.specs.errors import ScalingError
from elastrec.platform.specs.numba_cache import kernels_of

_CURVE_POINTS = 33
"""Points of the curve in pictures of a forecast."""
_NEVER = (math.inf, math.inf, math.inf)

Band = tuple[float, float, float]
"""The two ends of a band and, between them, the likely value."""


class TableHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Measured row counts of one table.

    Attributes:
        samples: trained so far, rising.
        rows: of all servers together at those moments.
        bytes_per_row: row, optimiser state and the map's share.
        cap: the maximum of rows (hash_size); None: no maximum.
    """

    table: str
    samples: tuple[float, ...]
    rows: tuple[float, ...]
    bytes_per_row: float
    cap: float | None = None


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """φ = k·n^b of one table: log φ = log_k + b·log n.

    Attributes:
        exponent_error: one standard deviation of b.
        scatter: standard deviation of log φ around the curve.
        last_samples, last_rows: the last point; the curve is moved so that it contains this point.
    """

    table: str
    log_k: float
    exponent: float
    exponent_error: float
    scatter: float
    last_samples: float
    last_rows: float
    bytes_per_row: float
    cap: float

    def at(self, samples: float) -> float:
        """Likely rows at a number of samples (≥ the last one)."""
        ahead = math.log(max(samples, self.last_samples) / self.last_samples)
        most = max(self.cap, self.last_rows)
        return min(self.last_rows * math.exp(min(max(self.exponent * ahead, 0.0), ahead)), most)

    def band(self, samples: float, deviations: float) -> Band:
        """Rows at a number of samples: so many standard deviations above `at`, `at`, and as many below."""
        ahead = math.log(max(samples, self.last_samples) / self.last_samples)
        error = math.sqrt(self.exponent_error**2 * ahead**2 + self.scatter**2 * min(ahead, 1.0))
        likely, error, most = self.exponent * ahead, deviations * error, max(self.cap, self.last_rows)
        return (
            min(self.last_rows * math.exp(min(max(likely + error, 0.0), ahead)), most),
            min(self.last_rows * math.exp(min(max(likely, 0.0), ahead)), most),
            min(self.last_rows * math.exp(min(max(likely - error, 0.0), ahead)), most),
        )

    def rows(self, samples: Floats, deviations: Floats | float = 0.0) -> Floats:
        """The same for arrays of shapes that broadcast, so many standard deviations above."""
        ahead = np.log(np.maximum(samples, self.last_samples) / self.last_samples)
        # From a known point, only the exponent's error matters; the scatter does not grow with distance.
        error = np.sqrt(self.exponent_error**2 * ahead**2 + self.scatter**2 * np.minimum(ahead, 1.0))
        # A table never grows faster than by one row per id of a sample, so that b ≤ 1 holds for the band too.
        power = np.minimum(np.maximum(self.exponent * ahead + deviations * error, 0.0), ahead)
        return np.asarray(np.minimum(self.last_rows * np.exp(power), max(self.cap, self.last_rows)))


def fit_growth(history: TableHistory) -> Growth:
    """Heaps' law by least squares in logarithms, later points weighing more: old ids say little about new ones.

    Raises:
        ScalingError: fewer than three usable points, counts that fall over samples, or no size of a row.
    """
    # Every round of every job forecasts, and texts take longer than the checks: they are made for an error alone.
    table = history.table
    if len(history.samples) != len(history.rows):
        points, as_many = f"{len(history.rows)} points", f"as many as samples, {len(history.samples)}"
        raise refusal(f"table {table}.rows", points, as_many, "give one count per moment")
    if not 0 < history.bytes_per_row < math.inf:
        raise refusal(
            f"table {table}.bytes_per_row", history.bytes_per_row, "above 0", "a row has at least its numbers"
        )
    samples_P, rows_P = np.array(history.samples, dtype=np.float64), np.array(history.rows, dtype=np.float64)
    is_rising, distinct, *law = _fastest(heaps_law)(samples_P, rows_P)
    if distinct < 3:
        raise ScalingError(
            f"table {table}: {distinct} usable points of {len(samples_P)}; allowed: at least 3 with samples "
            "and rows above 0; wait until the job has trained longer"
        )
    if not is_rising:
        raise refusal(f"table {table}.samples", "falling", "rising counts", "sort the points")
    log_k, exponent, exponent_error, scatter, last_samples, last_rows = law
    return Growth(
        table=table,
        log_k=log_k,
        exponent=exponent,
        exponent_error=exponent_error,
        scatter=scatter,
        last_samples=last_samples,
        last_rows=last_rows,
        bytes_per_row=history.bytes_per_row,
        cap=history.cap if history.cap is not None else math.inf,
    )


def _fastest(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of `growth_law`, compiled if numba is loaded already, as for the search of plans: numba takes 130
    MB, too much for masters."""
    return _compiled(function) if "numba" in sys.modules else function


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any] = kernels_of(growth_law.__file__)(error_model="numpy")(function)
    return compiled


class Action(StrEnum):
    """The change that a forecast requests."""

    NONE = "none"
    MORE_MEMORY = "more memory per server"
    MORE_SERVERS = "more servers"


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of the fullest server, and the requested change.

    Attributes:
        samples_to_limit: (early, likely, late): samples until the limit less its margin is reached; infinity: never,
            and for all three if no change is needed.
        seconds_to_limit: the same in time, with the band of the speed on top; None: the speed is not known.
        bytes_at_end: (low, likely, high) when the job has trained all of its samples.
        needed_bytes: per server at `needed_servers` servers, margin included, for the high end of the band.
        base_bytes: of a server without its rows; `rows_bytes`: of all rows at the end, high end of the band.
    """

    action: Action
    reason: str
    samples_to_limit: Band
    seconds_to_limit: Band | None
    bytes_at_end: Band
    needed_bytes: int
    needed_servers: int
    base_bytes: float
    rows_bytes: float


class MemoryRules(msgspec.Struct, frozen=True, kw_only=True):
    """Margins of a forecast.

    Attributes:
        margin: share of the limit that must stay free. Chosen: a forecast assumes that memory besides rows is constant,
            but it rises while servers save or move rows.
        deviations: standard deviations of the band on either side; 2 is about 95 %.
    """

    margin: float = 0.1
    deviations: float = 2.0

    def __post_init__(self) -> None:
        require(0 <= self.margin < 1, "memory.margin", self.margin, "a share of at least 0 and below 1", "0.1 is usual")
        require(self.deviations >= 0, "memory.deviations", self.deviations, "0 or more", "2 is usual")


class Servers(msgspec.Struct, frozen=True, kw_only=True):
    """The present servers of a job.

    Attributes:
        used_bytes: of the fullest one, measured now.
        limit_bytes: of each.
        imbalance: rows of the fullest over the mean, ≥ 1.
        largest_bytes: the maximum of a pod.
    """

    count: int
    used_bytes: float
    limit_bytes: float
    imbalance: float
    largest_bytes: float


def forecast(
    growths: Sequence[Growth],
    servers: Servers,
    trained_samples: float,
    remaining_samples: float,
    samples_per_second: float | None,
    rules: MemoryRules | None = None,
    *,
    speed_deviation: float = 0.0,
    fresh_samples: float = math.inf,
) -> Forecast:
    """Whether the fullest server reaches its limit before the job ends, and the change that prevents it.

    A server's memory besides rows (measured use less its rows) is assumed to be constant. A change is requested as soon
    as the pessimistic end of the band reaches the limit before the job's end. This depends on samples alone, not on the
    speed.

    Args:
        samples_per_second: at present; None: not known. Only the times in the forecast depend on it.
        speed_deviation: one standard deviation of it, samples/s.
        fresh_samples: of the remaining ones, those that may bring new ids: a second epoch brings none.

    Raises:
        ScalingError: an invalid speed or invalid counts.
    """
    rules = rules or MemoryRules()
    if samples_per_second is not None:
        usable = math.isfinite(samples_per_second) and samples_per_second > 0
        require(usable, "samples_per_second", samples_per_second, "above 0", "None where it is not known")
    require(servers.count >= 1 and servers.imbalance >= 1, "servers", servers, "count ≥ 1, imbalance ≥ 1", "measure")
    for name, value in (("used_bytes", servers.used_bytes), ("limit_bytes", servers.limit_bytes)):
        require(math.isfinite(value) and value > 0, f"servers.{name}", value, "above 0", "measure the servers")

    share, last_fresh = servers.imbalance / servers.count, trained_samples + fresh_samples

    now = most = likely = least = 0.0
    end = trained_samples + remaining_samples
    for growth in growths:
        above, expected, below = growth.band(min(end, last_fresh), rules.deviations)
        now += growth.bytes_per_row * growth.at(min(trained_samples, last_fresh))
        most += growth.bytes_per_row * above
        likely += growth.bytes_per_row * expected
        least += growth.bytes_per_row * below
    base = max(0.0, servers.used_bytes - share * now)
    safe = servers.limit_bytes * (1.0 - rules.margin)
    high, middle, low = base + share * most, base + share * likely, base + share * least
    needed = math.ceil(high / (1.0 - rules.margin) / MEMORY_STEP) * MEMORY_STEP

    def answer(
        action: Action, reason: str, needed_bytes: int, needed_servers: int,
        samples_to_limit: Band = _NEVER, seconds_to_limit: Band | None = _NEVER,
    ) -> Forecast:  # fmt: skip
        return Forecast(
            action=action,
            reason=reason,
            samples_to_limit=samples_to_limit,
            seconds_to_limit=seconds_to_limit,
            bytes_at_end=(low, middle, high),
            needed_bytes=needed_bytes,
            needed_servers=needed_servers,
            base_bytes=base,
            rows_bytes=most,
        )

    if high <= safe:
        reason = f"at the end the fullest server has at most {_gib(high)} of {_gib(servers.limit_bytes)}"
        return answer(Action.NONE, reason, needed, servers.count)
    table_T7 = np.array([
        (each.exponent, each.exponent_error, each.scatter, each.last_samples, each.last_rows, each.bytes_per_row,
         each.cap) for each in growths
    ])  # fmt: skip
    found = _fastest(samples_to)(table_T7, rules.deviations, base, share, safe, trained_samples, last_fresh)
    samples = (float(found[0]), float(found[1]), float(found[2]))
    if samples_per_second is None:
        seconds = None
        when = f"in {samples[0]:,.0f} samples at the earliest, {remaining_samples:,.0f} are left to train"
        when += " (the speed is not known yet)"
    else:
        moved = rules.deviations * speed_deviation
        slowest = samples_per_second - moved
        seconds = (
            samples[0] / (samples_per_second + moved),
            samples[1] / samples_per_second,
            samples[2] / slowest if slowest > 0 else math.inf,
        )
        when = f"{_in_words(seconds)} at {samples_per_second:,.0f} samples/s"
        when += f" (± {moved:,.0f})" if moved else ""
        when += f", {remaining_samples / samples_per_second:.0f} s are left to train"
    if needed <= servers.largest_bytes:
        reason = f"the limit less {100 * rules.margin:g} % is reached {when}: {_gib(needed)} per server hold to the end"
        return answer(Action.MORE_MEMORY, reason, needed, servers.count, samples, seconds)
    room = servers.largest_bytes * (1.0 - rules.margin) - base
    if room <= 0:
        raise ScalingError(
            f"servers.largest_bytes: {_gib(servers.largest_bytes)} is not allowed; allowed: above the {_gib(base)} "
            "that a server holds besides rows; give it larger nodes"
        )
    count = math.ceil(servers.imbalance * most / room)
    per_server = math.ceil(servers.largest_bytes / MEMORY_STEP) * MEMORY_STEP
    reason = f"the limit is reached {when}; {_gib(needed)} per server is more than a pod can have, {count} servers hold"
    needed = min(per_server, int(servers.largest_bytes))
    return answer(Action.MORE_SERVERS, reason, needed, count, samples, seconds)


def _in_words(seconds: Band) -> str:
    early, likely, late = seconds
    if math.isinf(likely):
        return f"in {early:.0f} s at the earliest"
    if math.isinf(late):
        return f"in {early:.0f} s at the earliest, likely in {likely:.0f} s,"
    if round(early) == round(late):
        return f"in {likely:.0f} s"
    return f"in {early:.0f} to {late:.0f} s, likely in {likely:.0f} s,"


def _rows_bytes(growths: Sequence[Growth], last_fresh: float, rules: MemoryRules) -> Callable[[Floats], Floats]:
    """Bytes of all rows by samples of shape (1, S): shape (B, S), the high end of the band first.

    Args:
        last_fresh: the sample after which no new ids come.
    """
    band_B1 = rules.deviations * np.array([[1.0], [0.0], [-1.0]])

    def total(samples: Floats) -> Floats:
        grown = np.minimum(samples, last_fresh)
        return np.asarray(sum(growth.bytes_per_row * growth.rows(grown, band_B1) for growth in growths))

    return total


def memory_curve(
    growths: Sequence[Growth],
    servers: Servers,
    trained_samples: float,
    remaining_samples: float,
    rules: MemoryRules,
    fresh_samples: float,
) -> MemoryCurve:
    """The curve that `forecast` uses, from now to the job's end; the same arguments."""
    samples_S = np.linspace(trained_samples, trained_samples + remaining_samples, _CURVE_POINTS)
    share = servers.imbalance / servers.count
    rows_3S = share * _rows_bytes(growths, trained_samples + fresh_samples, rules)(samples_S[None, :])
    high, likely, low = (rows_3S + max(0.0, servers.used_bytes - float(rows_3S[1, 0]))).tolist()
    return MemoryCurve(
        samples=tuple(samples_S.tolist()), low=tuple(low), likely=tuple(likely), high=tuple(high),
        safe_bytes=servers.limit_bytes * (1.0 - rules.margin),
    )  # fmt: skip


def _gib(amount: float) -> str:
    return f"{amount / 2**30:.3g} GiB"
