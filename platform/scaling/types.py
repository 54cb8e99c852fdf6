"""The plain values of scaling: what was measured on a job, what may be done with it, what was decided.

Units: seconds, bytes, samples, cores (float), currency per hour. Every value is frozen and is JSON in and out
(`msgspec.json`), so that it can travel through XCom, an artifact of a run, or a simulator's file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from elastrec.platform.scaling.amounts import GIBIBYTE, Allocation, Change, Resources, is_positive, require


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
    """What a job measured at one allocation. Not checked when made: profiles come from runs of all kinds.

    Attributes:
        iteration_seconds: mean step of a worker without its wait for data; T_iter of eq. 1.
        compute_seconds: the part of it that the worker computed (T_grad, eq. 2); None where it was not measured.
        iterations: steps that the means are over.
    """

    allocation: Allocation
    iteration_seconds: float
    compute_seconds: float | None = None
    iterations: int = 1


class Overheads(msgspec.Struct, frozen=True, kw_only=True):
    """What changing a job costs on one cluster, from its own measured starts and migrations (`objectives`).

    The two `…_start_core_seconds` are what `benchmarks.jobs.startup` measured on 2026-11-24; the other defaults are
    assumed.

    Attributes:
        worker_start_seconds, server_start_seconds: from the request to training; the job trains on meanwhile.
        migration_pause_seconds: training pauses when servers or their size change.
        migration_copy_seconds: rows are copied to other servers; the job trains on meanwhile.
        worker_start_core_seconds, server_start_core_seconds: that a pod computes until it works.
        measured: how many starts and migrations stand behind the seconds; 0: the defaults.
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
    """Memory that a job must have at the end of its horizon, whatever its throughput.

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
        """Of the fullest of so many servers."""
        return math.ceil(self.server_base_bytes + self.imbalance * self.embedding_bytes / servers)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one job's plans, both ends included. Where both are what the job has, plans leave it as it is."""

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
        """What a change takes beyond a bound, or farther beyond; empty: nothing."""
        for field in self.__struct_fields__:
            low, high = getattr(self, field)
            now, wanted = getattr(before, field), getattr(after, field)
            if not min(low, now) <= wanted <= max(high, now):
                return f"{field}: {wanted:g} is not allowed; allowed: {low:g} to {high:g}"
        return ""


class MemoryWish(msgspec.Struct, frozen=True, kw_only=True):
    """What a memory forecast asks for so that servers do not run out of it before the job ends.

    Attributes:
        seconds_to_limit: until the limit less its margin is reached, at the earliest; None: the speed is not known.
    """

    allocation: Allocation
    reason: str
    seconds_to_limit: float | None


class MemoryCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of the fullest server over samples, as it was forecast at one moment: for pictures.

    Attributes:
        samples: from that moment to the job's end, rising.
        low, likely, high: bytes at each of them, the band of `memory.MemoryRules.deviations`.
        safe_bytes: the limit of each server less what must stay free.
    """

    samples: tuple[float, ...]
    low: tuple[float, ...]
    likely: tuple[float, ...]
    high: tuple[float, ...]
    safe_bytes: float


EXPLORING = "exploring"
"""Who asks for a change that is only made to learn from it (`Plan.asked_by`)."""


class PastChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was made to the job's shape, by whomever.

    Attributes:
        asked_by: a policy, `EXPLORING`, or empty where nobody said.
    """

    before: Allocation
    after: Allocation
    seconds_ago: float
    asked_by: str = ""


class JobProfile(msgspec.Struct, frozen=True, kw_only=True):
    """All that a decision about one running job needs.

    Attributes:
        allocation: what it has now.
        remaining_samples: Φ of eq. 14.
        observations: of this job; any order, any number, not yet cleaned. Plans that save may not fall far below the
            fastest of their allocations, however many there are.
        prior: what is known before the first measurement, the most similar finished job's coefficients.
        memory: None when memory is not forecast: plans then keep the memory per pod.
        memory_wish: a change that a forecast asks for; None while memory lasts.
        movable: what can be changed while it runs; plans change nothing else.
        until_next_change_seconds: the window until the job may be rescaled again (cool-down included).
        priority: multiplies its weight; 1 is normal.
        changes: what was changed lately, in any order: a job rests after a change, and does not go back and forth.
        shape_version: of the shape that the job is to have; who carries a plan out refuses one for another version.
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
        """What a plan has less of than the rows are known to need; empty: nothing, or it leaves those pods alone."""
        need, now = self.memory, self.allocation
        if need is None:
            return ""
        servers, each = planned.parameter_servers, planned.parameter_server_memory_bytes
        if (servers, each) != (now.parameter_servers, now.parameter_server_memory_bytes):
            if each < now.parameter_server_memory_bytes:
                # They get smaller at once; others that take rows from them are still to start.
                servers = min(servers, now.parameter_servers)
            needed = need.server_bytes(servers)
            if each < needed:
                return f"{servers} servers with {_gib(each)} each; its rows need {_gib(needed)} in each"
        worker = planned.worker_memory_bytes
        if worker != now.worker_memory_bytes and worker < need.worker_bytes:
            return f"{_gib(worker)} per worker; each needs {_gib(need.worker_bytes)}"
        return ""


def _gib(amount: float) -> str:
    return f"{amount / GIBIBYTE:.3g} GiB"


class Coefficients(msgspec.Struct, frozen=True, kw_only=True):
    """α and β of eq. 2–5, in seconds per unit of their feature; all ≥ 0. The last ones are those of `step_form`.

    Attributes:
        fixed: Σβ. The four β are not separately identifiable: each is a constant added to T_iter.
        compute_fixed: the part of `fixed` that belongs to T_grad; None where compute was not measured by itself.
        fan_out: of a worker for each server, per core of the worker.
        fan_in: of a server for each worker, per core of the server.
        overlap: q: 1, the parts of a step add up; the larger, the more of them passes at the same time. No unit.
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
        """Of the same job on nodes on which every step takes so many times as long."""
        compute = None if self.compute_fixed is None else self.compute_fixed * factor
        return Coefficients(
            gradient=self.gradient * factor, update=self.update * factor, synchronise=self.synchronise * factor,
            embedding=self.embedding * factor, fixed=self.fixed * factor, compute_fixed=compute,
            fan_out=self.fan_out * factor, fan_in=self.fan_in * factor, overlap=self.overlap,
        )  # fmt: skip


class Prior(msgspec.Struct, frozen=True, kw_only=True):
    """Where a young job's model starts.

    Attributes:
        source: for people, the id of the finished job.
        strength: how many measured configurations it is worth at first.
    """

    coefficients: Coefficients
    source: str
    strength: float = 1.0


class CandidateKind(StrEnum):
    """What a candidate is for."""

    STAY = "stay"
    GROW = "grow"
    SAVE = "save"
    EXPLORE = "explore"


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that could be done with a job, and what it is predicted to bring.

    Attributes:
        samples_per_second: Ψ with it.
        relative_error: of that prediction, one standard deviation.
        gain: TG of eq. 8, samples/s, overhead taken off.
        overhead: samples/s.
        cost_per_hour: RC of eq. 7, against what the job has now; negative: it saves.
        needs: resources against what the job has now; negative: given back.
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
    """One job's candidates, the first of which is always to stay; the value that mapped tasks hand on.

    Attributes:
        samples_per_second: Ψ now.
        notes: for people: how far the model is to be trusted and why.
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
        """What is proposed for a job; `candidates` begins with to stay, which predicts Ψ now."""
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
    """A candidate after the choice: a line of the explanation.

    Attributes:
        weight: WG of eq. 14.
        value: RE · WG of eq. 12; None where RC ≤ 0, for which RE is not defined.
        why: why it was chosen, or why not.
    """

    candidate: Candidate
    weight: float
    value: float | None
    chosen: bool
    why: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to become of one job. Applying it is somebody else's work.

    Attributes:
        before: the allocation that the plan was made for; a plan is stale when the job has another one.
        allocation: the wanted one.
        predicted: the chosen candidate.
        considered: all candidates, the chosen one among them.
        plan_id: of this plan alone; carried out twice, it is one change. Empty: it is not to leave this process.
        shape_version: of the shape that it was made for; None: nothing is compared when it is carried out.
        expires_unix_seconds: when it is too old to be carried out; None: never.
        memory: the forecast when it was made; None: there was none, or it was not asked for.
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
        """Its policy, or `EXPLORING`: what a job only tried it may take back at once."""
        is_trial = self.predicted is not None and self.predicted.kind is CandidateKind.EXPLORE
        return EXPLORING if is_trial else self.policy

    @property
    def changes(self) -> frozenset[Change]:
        """Empty: the job stays as it is."""
        return self.before.changes(self.allocation)
