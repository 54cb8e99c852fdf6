"""How many jobs run out of memory with and without the forecast, and the error of its times.

    python -m benchmarks memory_forecast [--jobs 1000] [--output json]

Simulation: tables grow by Heaps' law, with noise in the growth of each window; in every fourth job, one table grows
three times as fast during a tenth of the job (a campaign). The forecast is the product's and reads what a master would:
rows and bytes at the end of each window. A server that it warns about gets the requested memory after five minutes, in
which the job continues to grow. The comparison is the paper's method, a straight line through the last windows.

Owners set the memory by last week's need, times a factor that is too small for about 5 % of the jobs (the paper: 4.7 %
fail). `short` is harder: every job has up to a half too little memory for its rows. It still has the 300 MB of the
server's process, because a job that is full in its first window fails before anything is measured.

The forecast's margin and the number of windows between two forecasts were chosen with the first thousand jobs; the
figures come from others.

`if True` instead of `if high <= safe` in `forecast` of `platform/scaling/memory.py`, so that no server is warned about,
turns both figures red.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np

from benchmarks.common.figures import Figure, run_benchmark
from elastrec.platform.scaling.memory import (
    Action,
    Growth,
    MemoryRules,
    Servers,
    TableHistory,
    fit_growth,
    forecast,
)
from elastrec.platform.scaling.model.columns import Floats

_WINDOWS = 100
_FIRST = 8
_EVERY = 4
_BASE = 300e6
_MIGRATION_SECONDS = 300.0
_WINDOW_SECONDS = 180.0
_FIRST_FRESH = 100_000
"""Seeds from here on: nothing was chosen on them."""


class Job:
    """One job's true growth, window by window, and the memory that its servers were given."""

    def __init__(self, seed: int, *, short: bool = False) -> None:
        random = np.random.default_rng(seed)
        tables = int(random.integers(1, 6))
        self.samples_W = np.linspace(1e8 / _WINDOWS, 1e8, _WINDOWS)
        self.bytes_per_row = random.choice([72.0, 136.0, 264.0], size=tables)
        exponents = random.uniform(0.4, 0.95, size=tables)
        rows = []
        for exponent in exponents:
            curve = self.samples_W**exponent * random.uniform(0.5, 20.0) * 1e8 ** (0.7 - exponent)
            steps = np.diff(curve, prepend=0.0) * np.exp(0.1 * random.standard_normal(_WINDOWS))
            if random.uniform() < 0.25:
                begin = int(random.integers(_WINDOWS // 4, _WINDOWS * 3 // 4))
                steps[begin : begin + _WINDOWS // 10] *= 3.0
            rows.append(np.cumsum(steps))
        self.rows_TW = np.array(rows)
        self.used_W = _BASE + self.bytes_per_row @ self.rows_TW
        # Last week's need, by a factor of people's experience: log-normal, below what is needed in some 5 %.
        if short:
            self.given = float(_BASE + random.uniform(0.5, 1.0) * (self.used_W[-1] - _BASE))
        else:
            self.given = float(self.used_W[-1] * np.exp(random.normal(0.5, 0.3)))

    def growths(self, window: int) -> list[Growth]:
        """The fits at the end of a window."""
        return [
            fit_growth(
                TableHistory(
                    table=str(k),
                    samples=tuple(self.samples_W[: window + 1]),
                    rows=tuple(rows_W[: window + 1]),
                    bytes_per_row=float(size),
                )
            )
            for k, (rows_W, size) in enumerate(zip(self.rows_TW, self.bytes_per_row, strict=True))
        ]


Warn = Callable[[Job, int, float], float]
"""(job, window, limit) → bytes that the server should have; the limit itself where nothing is to be done."""


def by_heaps(deviations: float) -> Warn:
    """The product's forecast."""

    def warn(job: Job, window: int, limit: float) -> float:
        servers = Servers(
            count=1, used_bytes=float(job.used_W[window]), limit_bytes=limit, imbalance=1.0, largest_bytes=math.inf
        )
        trained = float(job.samples_W[window])
        speed = trained / ((window + 1) * _WINDOW_SECONDS)
        answer = forecast(
            job.growths(window), servers, trained, 1e8 - trained, speed, MemoryRules(deviations=deviations)
        )
        return float(answer.needed_bytes) if answer.action is not Action.NONE else limit

    return warn


def by_line(job: Job, window: int, limit: float) -> float:
    """The paper's: memory grows in proportion to samples, at the rate of the last windows; the same margin."""
    slope = (job.used_W[window] - job.used_W[window - 4]) / 4
    end = float(job.used_W[window] + slope * (_WINDOWS - 1 - window))
    return end / 0.9 if end > 0.9 * limit else limit


def _live(job: Job, warn: Warn | None) -> tuple[bool, int, float]:
    """(ran out of memory, changes of memory, bytes given at the end)."""
    limit, pending, changes = job.given, (math.inf, 0.0), 0
    delay = math.ceil(_MIGRATION_SECONDS / _WINDOW_SECONDS)
    for window in range(_WINDOWS):
        if window >= pending[0]:
            limit, pending = pending[1], (math.inf, 0.0)
        if job.used_W[window] > limit:
            return True, changes, limit
        if warn is not None and window >= _FIRST and window % _EVERY == 0 and pending[0] == math.inf:
            wanted = warn(job, window, limit)
            if wanted > limit:
                pending, changes = (window + delay, wanted), changes + 1
    return False, changes, limit


def _end_errors(jobs: list[Job], window: int) -> tuple[Floats, float]:
    """(relative error of the bytes at the end as forecast in a window, share of jobs inside the band)."""
    errors, inside = [], []
    for job in jobs:
        servers = Servers(
            count=1, used_bytes=float(job.used_W[window]), limit_bytes=1.0, imbalance=1.0, largest_bytes=math.inf
        )
        trained = float(job.samples_W[window])
        low, likely, high = forecast(job.growths(window), servers, trained, 1e8 - trained, 1.0).bytes_at_end
        errors.append(abs(likely / job.used_W[-1] - 1.0))
        inside.append(low <= job.used_W[-1] <= high)
    return np.array(errors), float(np.mean(inside))


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Share of jobs that run out of memory in each way, and the forecast's errors."""
    fresh = range(_FIRST_FRESH, _FIRST_FRESH + arguments.jobs)
    jobs, short = [Job(seed) for seed in fresh], [Job(seed, short=True) for seed in fresh]
    settings = {"jobs": len(jobs), "windows": _WINDOWS, "noise": "10 % per window", "campaigns": "25 % of the tables"}
    ways: dict[str, Warn | None] = {"by_hand": None, "straight_line": by_line, "forecast": by_heaps(2.0)}
    figures = []
    cases = [(name, warn, jobs) for name, warn in ways.items()]
    cases += [(f"short.{name}", warn, short) for name, warn in ways.items()]
    for name, warn, mine in cases:
        lived = [_live(job, warn) for job in mine]
        failed = 100.0 * float(np.mean([out for out, _, _ in lived]))
        given = sum(limit for _, _, limit in lived) / sum(float(job.used_W[-1]) for job in mine)
        figures.append(
            Figure(
                f"memory_forecast.out_of_memory.{name}", failed, "% of jobs",
                at_most=0.23 if name.endswith("forecast") else None, simulated=True,
                settings={**settings, "changes_per_job": round(float(np.mean([c for _, c, _ in lived])), 3),
                          "given_over_needed": round(given, 2)},
            )
        )  # fmt: skip
    for share in (0.2, 0.5):
        errors, inside = _end_errors(jobs[: arguments.jobs // 4], int(share * _WINDOWS))
        figures.append(
            Figure(
                f"memory_forecast.error_after_{round(100 * share)}_percent", 100 * float(np.median(errors)),
                "% of bytes at the end, median", simulated=True,
                settings={"p90_%": round(100 * float(np.quantile(errors, 0.9)), 1), "inside_band": round(inside, 3)},
            )
        )  # fmt: skip
    return figures


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, default=1000, help="simulated jobs (default 1000)")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options)
