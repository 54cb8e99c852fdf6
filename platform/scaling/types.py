"""The plain values of scaling: measurements of a job, its limits, and decisions about it.

Units: seconds, bytes, samples, cores (float), currency per hour. Every value is frozen and can be encoded as JSON
(`msgspec.json`), for XCom, for an artifact of a run, or for a file of the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from elastrec.platform.scaling.amounts import GIBIBYTE, Allocation, Change, Resources, is_positive, require
from elastrec.platform.specs.text.some import counted


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """The constants of a job in eq. 2–5.

    Attributes:
        batch_size: m, samples per worker and step.
        dense_bytes: M, dense parameters; 0 for none.
        embedding_dimension: D, numbers per row.
        network_bytes_per_second: B, between one worker and the servers.
    """

    batch_size: int
    dense_bytes: int
    embedding_dimension: int
    network_bytes_per_second: float = 1.25e9

    def __post_init__(self) -> None:
        remedy = "take it from the job file"
        require(self.batch_size >= 1, "batch_size", self.batch_size, "at least 1", remedy)
        require(self.dense_bytes >= 0, "dense_bytes", self.dense_bytes, "0 or more", remedy)
        require(self.embedding_dimension >= 1, "embedding_dimension", self.embedding_dimension, "at least 1", remedy)
        speed = self.network_bytes_per_second
        require(is_positive(speed), "network_bytes_per_second", speed, "above 0", "give the network's speed")


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """A job's measurement at one allocation. The constructor does not check it, because profiles come from runs of all
    kinds.

    Attributes:
        iteration_seconds: mean step of a worker without its wait for data; T_iter of eq. 1.
        compute_seconds: the part of it in which the worker computed (T_grad, eq. 2); None where it was not measured.
        iterations: number of steps of the means, of all single workers; older ones may count less.
    """

    allocation: Allocation
    iteration_seconds: float
    compute_seconds: float | None = None
    iterations: int = 1


class Overheads(msgspec.Struct, frozen=True, kw_only=True):
    """The costs of changes on one cluster, from its own measured starts and migrations (`objectives`).

    The two `…_start_core_seconds` are what `benchmarks.jobs.startup` measured on 2026-11-24; the other defaults are
    assumed.

    Attributes:
        worker_start_seconds, server_start_seconds: from the request to training; the job continues to train.
        migration_pause_seconds: training pauses when servers or their size change.
        migration_copy_seconds: for copying rows to other servers; the job continues to train.
        worker_start_core_seconds, server_start_core_seconds: CPU time of a pod until it trains.
        measured: number of measured starts and migrations; 0: the defaults.
    """

    worker_start_seconds: float = 60.0
    server_start_seconds: float = 60.0
    migration_pause_seconds: float = 30.0
    migration_copy_seconds: float = 0.0
    worker_start_core_seconds: float = 3.0
    server_start_core_seconds: float = 1.1
    measured: int = 0

    def __post_init__(self) -> None:
        for field in self.__struct_fields__[:-1]:
            value = getattr(self, field)
            require(math.isfinite(value) and value >= 0, f"overheads.{field}", value, "0 or more", "correct it")


class MemoryNeed(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that a job must have at the end of its horizon, independently of its throughput.

    Attributes:
        worker_bytes: of one worker.
        server_base_bytes: of one server before its first row.
        embedding_bytes: of all rows together; servers share them.
        imbalance: the fullest server's share over the mean, ≥ 1.
    """

    worker_bytes: int
    server_base_bytes: int
    embedding_bytes: int
    imbalance: float = 1.1

    def server_bytes(self, servers: int) -> int:
        """Need of the fullest server, by the number of servers."""
        return math.ceil(self.server_base_bytes + self.imbalance * self.embedding_bytes / servers)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one job's plans, both ends included. Plans do not change a value whose bounds are both the present
    one."""

    workers: tuple[int, int] = (1, 64)
    parameter_servers: tuple[int, int] = (1, 16)
    worker_cores: tuple[float, float] = (0.25, 32.0)
    parameter_server_cores: tuple[float, float] = (0.25, 32.0)
    worker_memory_bytes: tuple[int, int] = (256 * 2**20, 256 * 2**30)
    parameter_server_memory_bytes: tuple[int, int] = (256 * 2**20, 256 * 2**30)

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            low, high = getattr(self, field)
            require(0 < low <= high, f"limits.{field}", (low, high), "0 < low ≤ high", "correct the job's limits")

    def broken_by(self, before: Allocation, after: Allocation) -> str:
        """The values that a change moves beyond a bound, or farther beyond it; empty: none."""
        for field in self.__struct_fields__:
            low, high = getattr(self, field)
            now, wanted = getattr(before, field), getattr(after, field)
            if not min(low, now) <= wanted <= max(high, now):
                return f"{field}: {wanted:g} is not allowed; allowed: {low:g} to {high:g}"
        return ""


class MemoryWish(msgspec.Struct, frozen=True, kw_only=True):
    """The change that a memory forecast requests so that servers do not run out of memory before the job ends.

    Attributes:
        seconds_to_limit: until the limit less its margin is reached, at the earliest; None: the speed is not known.
    """

    allocation: Allocation
    reason: str
    seconds_to_limit: float | None


class MemoryCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Forecast memory of the fullest server over samples, for pictures.

    Attributes:
        samples: from the time of the forecast to the job's end, rising.
        low, likely, high: bytes at each of them; the band of `memory.MemoryRules.deviations`.
        safe_bytes: the limit of each server less the margin that must stay free.
    """

    samples: tuple[float, ...]
    low: tuple[float, ...]
    likely: tuple[float, ...]
    high: tuple[float, ...]
    safe_bytes: float


EXPLORING = "exploring"
"""The value of `Plan.asked_by` for a change that is only made to measure its effect."""


class PastChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the job's shape.

    Attributes:
        asked_by: a policy, `EXPLORING`, or empty: unknown.
    """

    before: Allocation
    after: Allocation
    seconds_ago: float
    asked_by: str = ""


class JobProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a decision about one running job.

    Attributes:
        allocation: the present one.
        remaining_samples: Φ of eq. 14.
        observations: of this job; any order, any number, not yet cleaned. Plans that save may not fall far below the
            fastest of their allocations, however many there are.
        prior: the coefficients of the most similar finished job, for the time before the first measurement.
        memory: None when memory is not forecast: plans then keep the memory per pod.
        memory_wish: a change that a forecast requests; None: memory is sufficient.
        movable: the kinds of change that are possible while it runs; plans contain no others.
        until_next_change_seconds: the window until the job may be rescaled again (cool-down included).
        priority: multiplies its weight; 1 is normal.
        changes: the latest ones, in any order, so that a job is not changed too often or back and forth.
        shape_version: of the target shape; the master refuses a plan for another version.
    """

    job_id: str
    shape: ModelShape
    allocation: Allocation
    remaining_samples: float
    observations: tuple[Observation, ...] = ()
    prior: Prior | None = None
    memory: MemoryNeed | None = None
    memory_wish: MemoryWish | None = None
    limits: Limits = Limits()
    movable: frozenset[Change] = frozenset(Change)
    until_next_change_seconds: float = 180.0
    team: str = "default"
    priority: float = 1.0
    changes: tuple[PastChange, ...] = ()
    shape_version: int = 0

    def __post_init__(self) -> None:
        remedy = f"correct the profile of {self.job_id}"
        left = self.remaining_samples
        require(math.isfinite(left) and left >= 0, "remaining_samples", left, "0 or more", remedy)
        window = self.until_next_change_seconds
        require(is_positive(window), "until_next_change_seconds", window, "above 0", remedy)
        require(is_positive(self.priority), "priority", self.priority, "above 0", remedy)
        for each in self.changes:
            good = math.isfinite(each.seconds_ago) and each.seconds_ago >= 0
            require(good, "changes.seconds_ago", each.seconds_ago, "0 or more", remedy)

    def lacks_memory(self, planned: Allocation) -> str:
        """Why a plan has too little memory for the rows; empty: it has enough, or does not change those pods."""
        need, now = self.memory, self.allocation
        if need is None:
            return ""
        servers, each = planned.parameter_servers, planned.parameter_server_memory_bytes
        if (servers, each) != (now.parameter_servers, now.parameter_server_memory_bytes):
            if each < now.parameter_server_memory_bytes:
                # They get smaller at once, before new ones that take rows from them have started.
                servers = min(servers, now.parameter_servers)
            needed = need.server_bytes(servers)
            if each < needed:
                return f"{counted(servers, 'server')} with {_gib(each)} each; its rows need {_gib(needed)} in each"
        worker = planned.worker_memory_bytes
        if worker != now.worker_memory_bytes and worker < need.worker_bytes:
            return f"{_gib(worker)} per worker; each needs {_gib(need.worker_bytes)}"
        return ""


def _gib(amount: float) -> str:
    return f"{amount / GIBIBYTE:.3g} GiB"


class Coefficients(msgspec.Struct, frozen=True, kw_only=True):
    """α and β of eq. 2–5, in seconds per unit of their feature; all ≥ 0. The last ones are those of `step_form`.

    Attributes:
        fixed: Σβ. The four β are not separately identifiable, because each is a constant summand of T_iter.
        compute_fixed: the part of `fixed` that belongs to T_grad; None where compute was not measured separately.
        fan_out: a worker's cost for each server, per core of the worker.
        fan_in: a server's cost for each worker, per core of the server.
        overlap: q; 1: the parts of a step add up; the larger, the more they overlap. No unit.
    """

    gradient: float
    update: float
    synchronise: float
    embedding: float
    fixed: float
    compute_fixed: float | None = None
    fan_out: float = 0.0
    fan_in: float = 0.0
    overlap: float = 1.0

    def at_level(self, factor: float) -> Coefficients:
        """The coefficients of the same job on nodes on which every step takes `factor` times as long."""
        compute = None if self.compute_fixed is None else self.compute_fixed * factor
        return Coefficients(
            gradient=self.gradient * factor, update=self.update * factor, synchronise=self.synchronise * factor,
            embedding=self.embedding * factor, fixed=self.fixed * factor, compute_fixed=compute,
            fan_out=self.fan_out * factor, fan_in=self.fan_in * factor, overlap=self.overlap,
        )  # fmt: skip


class Prior(msgspec.Struct, frozen=True, kw_only=True):
    """The starting point of a young job's model.

    Attributes:
        source: the id of the finished job, for users.
        strength: its initial weight, as a number of measured configurations.
    """

    coefficients: Coefficients
    source: str
    strength: float = 1.0


class CandidateKind(StrEnum):
    """The purpose of a candidate."""

    STAY = "stay"
    GROW = "grow"
    SAVE = "save"
    EXPLORE = "explore"


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A possible change of a job and its predicted outcome.

    Attributes:
        samples_per_second: Ψ with it.
        relative_error: of that prediction, one standard deviation.
        gain: TG of eq. 8, samples/s, overhead taken off.
        overhead: samples/s.
        cost_per_hour: RC of eq. 7, against the present allocation; negative: it saves.
        needs: resources against the present allocation; negative: freed.
    """

    allocation: Allocation
    kind: CandidateKind
    samples_per_second: float
    gain: float
    overhead: float
    cost_per_hour: float
    needs: Resources
    relative_error: float = 0.0


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """One job's candidates, the first of which is always to stay; the result of a mapped task.

    Attributes:
        samples_per_second: Ψ now.
        notes: for users: the reliability of the model, with reasons.
    """

    job_id: str
    allocation: Allocation
    remaining_samples: float
    samples_per_second: float
    candidates: tuple[Candidate, ...]
    priority: float = 1.0
    team: str = "default"
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, job: JobProfile, candidates: Sequence[Candidate], notes: Sequence[str] = ()) -> Proposal:
        """The proposal for a job; the first of `candidates` is to stay, with the prediction of Ψ now."""
        return cls(
            job_id=job.job_id,
            allocation=job.allocation,
            remaining_samples=job.remaining_samples,
            samples_per_second=candidates[0].samples_per_second,
            candidates=tuple(candidates),
            priority=job.priority,
            team=job.team,
            notes=tuple(notes),
        )


class Considered(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate after the choice; a row of the explanation.

    Attributes:
        weight: WG of eq. 14.
        value: RE · WG of eq. 12; None where RC ≤ 0, for which RE is not defined.
        why: the reason for which it was or was not chosen.
    """

    candidate: Candidate
    weight: float
    value: float | None
    chosen: bool
    why: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The decision about one job. Other components apply it.

    Attributes:
        before: the allocation for which the plan was made; a plan is stale when the job has another one.
        allocation: the target.
        predicted: the chosen candidate.
        considered: all candidates, the chosen one among them.
        plan_id: of this plan alone; applied twice, it is one change. Empty: for use within this process only.
        shape_version: of the shape for which it was made; None: not compared when it is applied.
        expires_unix_seconds: when it is too old to be applied; None: never.
        memory: the forecast when it was made; None: there was none, or it was not requested.
    """

    job_id: str
    policy: str
    before: Allocation
    allocation: Allocation
    reason: str
    predicted: Candidate | None = None
    considered: tuple[Considered, ...] = ()
    plan_id: str = ""
    shape_version: int | None = None
    expires_unix_seconds: float | None = None
    memory: MemoryCurve | None = None

    @property
    def asked_by(self) -> str:
        """Its policy, or `EXPLORING`: a job may undo an exploring change at once."""
        is_trial = self.predicted is not None and self.predicted.kind is CandidateKind.EXPLORE
        return EXPLORING if is_trial else self.policy

    @property
    def changes(self) -> frozenset[Change]:
        """The kinds of change; empty: the job stays as it is."""
        return self.before.changes(self.allocation)
