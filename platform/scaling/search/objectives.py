"""What a plan costs and what it brings: RC and TG of DLRover-RM §4.2, and the rule that says which plans are allowed.

    RC(A) = Σ_r a_r · price_r                     eq. 7, currency/hour, against what the job has now
    TG(A) = ΔΨ − overhead(A)                      eq. 8, samples/s
    overhead = Ψ_now · pause/h + ΔΨ · start/h     h = min(time left with A, what a plan has to pay for itself in)

The paper subtracts a time from a speed; here the overhead is what pause and start cost in samples, spread over the
horizon h. The window until the next round would be too short a horizon: a plan stays until a better one is worth
another pause, and spread over three minutes a pause of thirty seconds forbids every change of servers. The paper only
adds resources; here plans that save are allowed too. A plan that adds cost must raise log Ψ by at least
`grow_efficiency` times log price, a plan that saves may lower it by at most `save_efficiency` times: with save < grow,
every allowed plan raises log Ψ − c·log price for a c between them, so plans can never go in a circle.

Shape legend: N allocations.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from elastrec.platform.scaling.amounts import Allocation, PriceList, Resources, is_positive, require
from elastrec.platform.scaling.model.columns import Columns, Floats
from elastrec.platform.scaling.model.throughput import Prediction, ThroughputModel
from elastrec.platform.scaling.types import Candidate, CandidateKind, JobProfile, Overheads


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """When a change is worth making.

    Attributes:
        max_slowdown: share of Ψ that a plan that saves may lose, against what the job started with or has now.
        grow_efficiency: least growth of log Ψ per growth of log price; 1 is linear scaling, 0.25 buys 19 % for 100 %.
        save_efficiency: most loss of log Ψ per loss of log price.
        least_change: share by which Ψ must grow, or the price fall; smaller changes are within the model's error.
        payback_seconds: a change has so much time to pay for its pause and its start, or what is left of the job.
        trusted_error: relative error of a prediction above which a candidate is only explored, never chosen for gain.
    """

    max_slowdown: float = 0.05
    grow_efficiency: float = 0.25
    save_efficiency: float = 0.2
    least_change: float = 0.05
    payback_seconds: float = 3600.0
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
    """What N allocations would bring one job; arrays are float64 of shape (N,).

    Attributes:
        against_rules: by how much of its present speed the job would have to gain more; ≤ 0 where the rules allow the
            plan, whatever its prediction is worth.
        more_cores, more_memory_bytes: against what the job has now.
    """

    columns: Columns
    predicted: Prediction
    gain: Floats
    overhead: Floats
    cost_per_hour: Floats
    more_cores: Floats
    more_memory_bytes: Floats
    against_rules: Floats
    trusted_error: float

    @property
    def samples_per_second(self) -> Floats:
        """Ψ with each of them."""
        return self.predicted.samples_per_second

    @property
    def relative_error(self) -> Floats:
        """Of that prediction; dear, so that it is computed where it is asked for: take rows first."""
        return self.predicted.relative_error

    @cached_property
    def violation(self) -> Floats:
        """≤ 0 where the rules allow the plan and its prediction is to be trusted (see `Rules`)."""
        return np.maximum(self.against_rules, self.relative_error - self.trusted_error)

    def take(self, rows: npt.NDArray[np.intp]) -> Outcomes:
        """Some rows of them."""
        return Outcomes(
            columns=self.columns.take(rows), predicted=self.predicted.take(rows), gain=self.gain[rows],
            overhead=self.overhead[rows], cost_per_hour=self.cost_per_hour[rows], more_cores=self.more_cores[rows],
            more_memory_bytes=self.more_memory_bytes[rows], against_rules=self.against_rules[rows],
            trusted_error=self.trusted_error,
        )  # fmt: skip

    def candidate(self, row: int, kind: CandidateKind) -> Candidate:
        """One row as a value."""
        return Candidate(
            allocation=self.columns.allocation(row),
            kind=kind,
            samples_per_second=float(self.samples_per_second[row]),
            gain=float(self.gain[row]),
            overhead=float(self.overhead[row]),
            cost_per_hour=float(self.cost_per_hour[row]),
            needs=Resources(float(self.more_cores[row]), float(self.more_memory_bytes[row])),
            relative_error=float(self.relative_error[row]),
        )


@dataclass(frozen=True)
class Situation:
    """One job, its model and its cluster's prices: what `outcomes` asks about."""

    job: JobProfile
    model: ThroughputModel
    prices: PriceList
    overheads: Overheads = field(default_factory=Overheads)
    rules: Rules = field(default_factory=Rules)

    @cached_property
    def now(self) -> Prediction:
        """What the model says of the allocation that the job has."""
        return self.model.predict(Columns.of([self.job.allocation]))

    @cached_property
    def samples_per_second(self) -> float:
        """Ψ now, by the model: compared with the model's own predictions, its errors cancel."""
        return float(self.now.samples_per_second[0])

    @property
    def horizon_seconds(self) -> float:
        """h: the time that a change has to pay for itself; at least the window until the next one is possible."""
        return float(self._horizons(self.rules.payback_seconds, self.now.samples_per_second)[0])

    def _horizons(self, payback_seconds: float, samples_per_second_N: Floats) -> Floats:
        payback = max(payback_seconds, self.job.until_next_change_seconds)
        return np.minimum(self.job.remaining_samples / samples_per_second_N, payback)

    @cached_property
    def next_round(self) -> Situation:
        """The same job when it may be changed the next time, if it stays as it is until then."""
        trained = self.job.until_next_change_seconds * self.samples_per_second
        job = msgspec.structs.replace(self.job, remaining_samples=max(self.job.remaining_samples - trained, 0.0))
        return replace(self, job=job)

    def outcomes(self, columns: Columns, *, payback_seconds: float | None = None) -> Outcomes:
        """RC, TG and the rules for N allocations; float64 of shape (N,) each.

        Args:
            payback_seconds: in place of that of the rules.
        """
        predicted, speed = self.model.predict(columns), self.samples_per_second
        known = _known(columns, self.job.allocation, self.prices, self.overheads, self.rules)
        difference_N = predicted.samples_per_second - speed
        payback = self.rules.payback_seconds if payback_seconds is None else payback_seconds
        # A plan that makes the job faster also ends it earlier: it has less time to pay for itself.
        horizon_N = self._horizons(payback, np.maximum(predicted.samples_per_second, speed))
        lost_N, late_N = _share(known.pause_N, horizon_N), _share(known.start_N, horizon_N)
        overhead_N = speed * lost_N + np.maximum(difference_N, 0.0) * late_N
        gain_N = difference_N - overhead_N
        # What a plan saves it saves once its pods train. It keeps its own share of Ψ, and the share that all savings
        # together have to keep.
        saved_N, least = known.dearer_N * (1.0 - late_N), math.log1p(self.rules.least_change)
        kept_N = np.where(saved_N <= -least, np.expm1(self.rules.save_efficiency * saved_N), np.inf)
        kept_N = np.maximum(kept_N, (1.0 - self.rules.max_slowdown) * self.reference / speed - 1.0)
        return Outcomes(
            columns=columns,
            predicted=predicted,
            gain=gain_N,
            overhead=overhead_N,
            cost_per_hour=known.cost_N,
            more_cores=known.more_cores_N,
            more_memory_bytes=known.more_bytes_N,
            against_rules=np.minimum(known.grow_rise_N, kept_N) - gain_N / speed,
            # Not after the front is found: plans that are trusted lie behind bolder ones that are not.
            trusted_error=self.rules.trusted_error,
        )

    @cached_property
    def reference(self) -> float:
        """Ψ against which a slowdown is measured, so that many small savings do not add up to a large one.

        By the model, as `samples_per_second`: what was measured at the job's start would be compared with a prediction.
        """
        begun = self.job.started_with
        if begun is None or begun == self.job.allocation:
            return self.samples_per_second
        return max(float(self.model.predict(Columns.of([begun])).samples_per_second[0]), self.samples_per_second)


@dataclass(frozen=True)
class _Known:
    """What N allocations cost against the present one, whatever their speed; arrays of shape (N,).

    Attributes:
        pause_N, start_N: seconds.
        dearer_N: logarithm of the price over the present one.
        grow_rise_N: share by which Ψ must rise for the plan to be worth its price (`Rules`).
    """

    cost_N: Floats
    more_cores_N: Floats
    more_bytes_N: Floats
    pause_N: Floats
    start_N: Floats
    dearer_N: Floats
    grow_rise_N: Floats


def _known(
    columns: Columns, allocation: Allocation, prices: PriceList, overheads: Overheads, rules: Rules
) -> _Known:  # fmt: skip
    """Computed once as long as a job keeps what it has."""
    return columns.once(
        (allocation, prices, overheads, rules), lambda: _compared(columns, allocation, prices, overheads, rules)
    )


def _compared(
    columns: Columns, allocation: Allocation, prices: PriceList, overheads: Overheads, rules: Rules
) -> _Known:  # fmt: skip
    now = Columns.of([allocation])
    price_now = float(now.per_hour(prices)[0])
    price_N = columns.per_hour(prices)
    # Sums of prices are inexact, and a cost of 1e-18 would be a bargain without equal (eq. 11).
    price_N = np.where(np.abs(price_N - price_now) < 1e-9 * price_now, price_now, price_N)
    dearer_N, least = np.log(price_N / price_now), math.log1p(rules.least_change)
    pause_N, start_N = _pause_and_start(now, columns, overheads)
    found = _Known(
        cost_N=price_N - price_now,
        more_cores_N=columns.cores - now.cores,
        more_bytes_N=columns.memory_bytes - now.memory_bytes,
        pause_N=pause_N,
        start_N=start_N,
        dearer_N=dearer_N,
        grow_rise_N=np.expm1(np.maximum(rules.grow_efficiency * dearer_N, least)),
    )
    for value in vars(found).values():
        if isinstance(value, np.ndarray):
            value.setflags(write=False)
    return found


def _share(seconds_N: Floats, horizon_N: Floats) -> Floats:
    """Of the horizon, at most 1; all of one that is over: a job that ends at once has no time for a change to pay."""
    return np.where(horizon_N > seconds_N, seconds_N / np.maximum(horizon_N, 1e-9), 1.0)


def _pause_and_start(now: Columns, columns: Columns, overheads: Overheads) -> tuple[Floats, Floats]:
    """Seconds without training, and seconds until the new pods train; workers come and go without a pause."""
    more_workers = columns.workers > now.workers
    other_worker = (columns.worker_cores != now.worker_cores) | (
        columns.worker_memory_bytes != now.worker_memory_bytes
    )  # fmt: skip
    other_servers = (
        (columns.parameter_servers != now.parameter_servers)
        | (columns.parameter_server_cores != now.parameter_server_cores)
        | (columns.parameter_server_memory_bytes != now.parameter_server_memory_bytes)
    )
    pause_N = np.where(other_servers, overheads.migration_pause_seconds, 0.0)
    start_N = np.where(more_workers | other_worker, overheads.worker_start_seconds, 0.0)
    moved = overheads.server_start_seconds + overheads.migration_copy_seconds
    return pause_N, np.maximum(start_N, np.where(other_servers, moved, 0.0))


def measured_overheads(
    worker_starts: Sequence[float],
    server_starts: Sequence[float],
    pauses: Sequence[float],
    copies: Sequence[float] = (),
) -> Overheads:
    """Medians of what this cluster took; what it has never done keeps the documented default of `Overheads`.

    Args:
        worker_starts, server_starts: seconds from a request to the pod's first step.
        pauses, copies: seconds that training paused in migrations, and that rows were copied before.

    Raises:
        ScalingError: a time is no number or negative.
    """
    named = {
        "worker_start_seconds": worker_starts,
        "server_start_seconds": server_starts,
        "migration_pause_seconds": pauses,
        "migration_copy_seconds": copies,
    }
    for name, values in named.items():
        for value in values:
            require(math.isfinite(value) and value >= 0, name, value, "0 or more seconds", "leave this record out")
    return Overheads(
        **{name: statistics.median(values) for name, values in named.items() if values},
        measured=sum(map(len, named.values())),
    )
