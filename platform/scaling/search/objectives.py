"""Costs and gains of plans: RC and TG of DLRover-RM §4.2, and the rule that decides which plans are allowed.

    RC(A) = Σ_r a_r · price_r                     eq. 7, currency/hour, against the present allocation
    TG(A) = ΔΨ − overhead(A)                      eq. 8, samples/s
    overhead = Ψ_now · (pause + n·S/cores)/h + ΔΨ · start/h
    h = min(time left with A, payback time)

The paper subtracts a time from a speed; here the overhead is the cost of pause and start in samples, spread over the
horizon h. The window until the next round would be too short a horizon: a plan stays until a better one is worth
another pause, and over three minutes, a pause of thirty seconds would forbid every change of servers.

Each of the n starting pods computes for S core-seconds before it trains. In that time the job's present cores would
train Ψ_now·S/cores samples: much for a job of half a core that ends in minutes, very little for a large job. Pods whose
size only falls, in cores and in memory, are resized in place, so that none starts and nothing is delayed. Any other
size counts as new pods, because a plan does not know which nodes have the room. The pause is charged for smaller
servers, too, although they do not cause it, because one is needed to undo a wrong saving. (Without that charge, mean
completion times of cold jobs were 1 to 4 per cent longer, on the seeds of `CHOSEN_ON`.)

The paper only adds resources; here plans that save are allowed too. A plan that adds cost must raise log Ψ by at least
`grow_efficiency` times log price, a plan that saves may lower it by at most `save_efficiency` times: with save < grow,
every allowed plan raises log Ψ − c·log price for a c between them, so plans can never go in a circle.

A prediction is used if its error is at most `trusted_error`. A plan that only adds workers needs no such trust: with
α, β ≥ 0 a step of k times the workers takes at most k times as long (eq. 1–5, and the refined forms), so it cannot slow
the job, and the workers leave again without a pause. To explore first would cost a job that starts small one round for
each step. For the same reason, a plan that only removes workers keeps at least their share of Ψ: if that share is
enough, it needs no trust either. Any other saving that removes workers must keep enough even if the loss is one
standard deviation larger than predicted: a server that is slow for some minutes makes workers look idle, and to add
them again takes a start. Other savings pay on average: with the same caution, the median completion time of arrivals
was 6.3 and not 12.9 per cent below that of greedy Optimus (on seeds of `benchmarks.common.headlines.CHOSEN_ON`).

Shape legend: N allocations.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from types import ModuleType

import msgspec
import numpy as np
import numpy.typing as npt

from elastrec.platform.scaling.amounts import PriceList, Resources, is_positive, require
from elastrec.platform.scaling.model.columns import Columns, Floats
from elastrec.platform.scaling.model.throughput import LEAST_ERROR, ThroughputModel
from elastrec.platform.scaling.types import Candidate, CandidateKind, JobProfile, Overheads
from elastrec.platform.specs.scaling import ScalingSettings

_DEFAULTS = ScalingSettings()


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """When a change is worth making.

    Attributes:
        max_slowdown: share of Ψ that a plan that saves may lose, against the job's fastest allocation so far.
        grow_efficiency: least growth of log Ψ per growth of log price; 1 is linear scaling, 0.25 buys 19 % for 100 %.
        save_efficiency: most loss of log Ψ per loss of log price.
        least_change: share by which Ψ must grow, or the price fall. Chosen: smaller changes are within the noise of
            a measured step, and each disturbs a job.
        payback_seconds: the time in which a change has to pay for its pause and its start, unless the job ends earlier.
        trusted_error: relative error of a prediction above which a candidate is only explored, never chosen for gain,
            unless it only adds workers. Chosen: a doubling of the price must bring 19 %, and a prediction with a larger
            error cannot show that.
    """

    max_slowdown: float = _DEFAULTS.max_slowdown
    grow_efficiency: float = _DEFAULTS.grow_efficiency
    save_efficiency: float = _DEFAULTS.save_efficiency
    least_change: float = 0.05
    payback_seconds: float = _DEFAULTS.payback
    trusted_error: float = 0.25

    def __post_init__(self) -> None:
        for name in ("max_slowdown", "least_change"):
            share = getattr(self, name)
            require(0 <= share < 1, f"rules.{name}", share, "a share of at least 0 and below 1", "correct the settings")
        low, high = self.save_efficiency, self.grow_efficiency
        require(
            0 <= low < high,
            "rules.save_efficiency, grow_efficiency",
            (low, high),
            "0 ≤ save < grow",
            "otherwise a job would grow and shrink in turn",
        )
        payback = self.payback_seconds
        require(math.isfinite(payback) and payback >= 0, "rules.payback_seconds", payback, "0 or more", "correct it")
        require(is_positive(self.trusted_error), "rules.trusted_error", self.trusted_error, "above 0", "correct it")


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of N allocations for one job; arrays are float64 of shape (N,).

    Attributes:
        found_7N: the arrays below, one after the other (`kernels.outcomes`).
        present: the job of these plans (`kernels.Present`).
        errors_N: of the predicted speeds; None: computed on access.
    """

    columns: Columns
    model: ThroughputModel
    found_7N: Floats
    present: tuple[float, ...]
    errors_N: Floats | None = None

    @property
    def samples_per_second(self) -> Floats:
        """Ψ with each of them."""
        return self.found_7N[0]

    @property
    def gain(self) -> Floats:
        """TG, samples/s."""
        return self.found_7N[1]

    @property
    def overhead(self) -> Floats:
        """Samples/s."""
        return self.found_7N[2]

    @property
    def cost_per_hour(self) -> Floats:
        """RC, against the present allocation."""
        return self.found_7N[3]

    @property
    def more_cores(self) -> Floats:
        """Against what the job has now."""
        return self.found_7N[4]

    @property
    def more_memory_bytes(self) -> Floats:
        """Against what the job has now."""
        return self.found_7N[5]

    @property
    def against_rules(self) -> Floats:
        """The gain, as a share of the present speed, that is missing for the rules; ≤ 0 where they allow the plan,
        trusted or not."""
        return self.found_7N[6]

    @cached_property
    def relative_error(self) -> Floats:
        """Of the predicted speed. Expensive, so that it is computed on access: select rows first."""
        return self.model.relative_error(self.columns) if self.errors_N is None else self.errors_N

    @cached_property
    def violation(self) -> Floats:
        """≤ 0 where the rules allow the plan and its prediction is trusted (see `Rules`)."""
        doubts_N: Floats = kernels().doubts(
            self.columns.table_FN, self.found_7N, *self.model.terms, self.model.covariance_KK, self.present
        )
        return np.maximum(self.against_rules, doubts_N)

    def take(self, rows: npt.NDArray[np.intp]) -> Outcomes:
        """A selection of rows."""
        errors_N = None if self.errors_N is None else self.errors_N[rows]
        found_7N = np.take(self.found_7N, rows, axis=1)
        return Outcomes(self.columns.take(rows), self.model, found_7N, self.present, errors_N)

    def candidate(self, row: int, kind: CandidateKind) -> Candidate:
        """One row as a value."""
        speed, gain, overhead, cost, more_cores, more_bytes, _ = self.found_7N[:, row].tolist()
        return Candidate(
            allocation=self.columns.allocation(row),
            kind=kind,
            samples_per_second=speed,
            gain=gain,
            overhead=overhead,
            cost_per_hour=cost,
            needs=Resources(more_cores, more_bytes),
            relative_error=float(self.relative_error[row]),
        )


@dataclass(frozen=True)
class Situation:
    """One job, its model and its cluster's prices: the input of `outcomes`."""

    job: JobProfile
    model: ThroughputModel
    prices: PriceList
    overheads: Overheads = field(default_factory=Overheads)
    rules: Rules = field(default_factory=Rules)

    @cached_property
    def _speeds(self) -> tuple[float, float, float]:
        """Ψ now, its relative error, and the highest Ψ of all allocations so far."""
        trained_with = Columns.of([self.job.allocation, *(each.allocation for each in self.job.observations)])
        found: tuple[float, float, float] = front_kernels().speeds(
            trained_with.table_FN, *map(tuple, self.model.terms), self.model.covariance_KK, LEAST_ERROR
        )
        return found

    @property
    def samples_per_second(self) -> float:
        """Ψ now, by the model, because its errors cancel in comparisons with its other predictions."""
        return self._speeds[0]

    @property
    def relative_error(self) -> float:
        """Of Ψ now."""
        return self._speeds[1]

    @property
    def reference(self) -> float:
        """Ψ against which a slowdown is measured: the highest of the job's allocations so far, so that many small
        losses do not add up to a large one.

        Predicted by the model, as `samples_per_second`, because a measurement would be compared with a prediction.
        """
        return self._speeds[2]

    def outcomes(self, columns: Columns) -> Outcomes:
        """RC, TG and the rules for N allocations; float64 of shape (N,) each."""
        present = self.present(self.rules.payback_seconds)
        # Before the search of the front, because untrusted plans may dominate trusted ones.
        return Outcomes(columns, self.model, kernels().outcomes(columns.table_FN, *self.model.terms, present), present)

    def present(self, payback_seconds: float, *, after_seconds: float = 0.0) -> tuple[float, ...]:
        """`kernels.Present`, of the job as it is after some seconds in which it stays as it is.

        Args:
            payback_seconds: the time in which a change has to pay for itself; at least the window until the next one.
        """
        found: tuple[float, ...] = kernels().Present(
            *self._lasting,
            remaining=max(float(self.job.remaining_samples) - after_seconds * self.samples_per_second, 0.0),
            payback=float(max(payback_seconds, self.job.until_next_change_seconds)),
        )
        return found

    @cached_property
    def _lasting(self) -> tuple[float, ...]:
        """`kernels.Present` without what depends on the time, which comes last."""
        now, rules, overheads, speed = self.job.allocation, self.rules, self.overheads, self.samples_per_second
        found: tuple[float, ...] = kernels().Present(
            workers=float(now.workers),
            parameter_servers=float(now.parameter_servers),
            worker_cores=float(now.worker_cores),
            parameter_server_cores=float(now.parameter_server_cores),
            worker_memory_bytes=float(now.worker_memory_bytes),
            parameter_server_memory_bytes=float(now.parameter_server_memory_bytes),
            core_hour=float(self.prices.core_hour),
            gibibyte_hour=float(self.prices.gibibyte_hour),
            speed=speed,
            pause=float(overheads.migration_pause_seconds),
            worker_start=float(overheads.worker_start_seconds),
            server_start=float(overheads.server_start_seconds),
            copy=float(overheads.migration_copy_seconds),
            worker_start_work=float(overheads.worker_start_core_seconds),
            server_start_work=float(overheads.server_start_core_seconds),
            least_change=math.log1p(rules.least_change),
            grow_efficiency=float(rules.grow_efficiency),
            save_efficiency=float(rules.save_efficiency),
            # A plan without a loss of speed may save regardless of earlier allocations.
            least_kept=min((1.0 - rules.max_slowdown) * self.reference / speed - 1.0, 0.0),
            least_error=LEAST_ERROR,
            trusted_error=float(rules.trusted_error),
            remaining=math.nan,
            payback=math.nan,
        )
        return found[:-2]


@cache
def kernels() -> ModuleType:
    """Loaded when the first job's plans are looked for: numba alone takes a quarter of a second."""
    from elastrec.platform.scaling.search import kernels

    return kernels


@cache
def front_kernels() -> ModuleType:
    """Likewise."""
    from elastrec.platform.scaling.search import front_kernels

    return front_kernels


def measured_overheads(
    worker_starts: Sequence[float],
    server_starts: Sequence[float],
    pauses: Sequence[float],
    copies: Sequence[float] = (),
    worker_core_seconds: Sequence[float] = (),
    server_core_seconds: Sequence[float] = (),
) -> Overheads:
    """Medians of this cluster's measurements; without measurements, the documented defaults of `Overheads`.

    Args:
        worker_starts, server_starts: seconds from the request to the pod's first step.
        pauses, copies: seconds of migrations: of the pause of training, and of the copy of rows before it.
        worker_core_seconds, server_core_seconds: CPU time of pods until they trained, of the same starts.

    Raises:
        ScalingError: a time is no number or negative.
    """
    times = {
        "worker_start_seconds": worker_starts,
        "server_start_seconds": server_starts,
        "migration_pause_seconds": pauses,
        "migration_copy_seconds": copies,
    }
    named = times | {
        "worker_start_core_seconds": worker_core_seconds,
        "server_start_core_seconds": server_core_seconds,
    }
    for name, values in named.items():
        for value in values:
            require(math.isfinite(value) and value >= 0, name, value, "0 or more seconds", "leave this record out")
    return Overheads(
        **{name: statistics.median(values) for name, values in named.items() if values},
        measured=sum(map(len, times.values())),
    )
