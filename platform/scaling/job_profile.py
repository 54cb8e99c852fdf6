"""Decides which changes of a job a round may request; live and simulated jobs use the same code."""

from __future__ import annotations

import msgspec

from elastrec.platform.scaling.across_jobs.quota import Holder
from elastrec.platform.scaling.amounts import Allocation, Change
from elastrec.platform.scaling.memory_outlook import MemoryOutlook, MemorySeen, look_ahead, wish_of
from elastrec.platform.scaling.types import JobProfile, Limits, MemoryWish, ModelShape, Observation, PastChange, Prior


class MemoryFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a job, as far as a forecast of its memory needs it. No field has a default.

    Attributes:
        memory: measurements of it; `largest_bytes` of a pod as the nodes allow; None: memory is not planned (a
            simulated job without tables).
        changes: the latest ones of its shape.
        are_servers_settled: every server is up and has its target size, whatever happens to other pods.

    The others are those of `JobProfile`.
    """

    job_id: str
    allocation: Allocation
    memory: MemorySeen | None
    changes: tuple[PastChange, ...]
    limits: Limits
    movable: frozenset[Change]
    until_next_change_seconds: float
    are_servers_settled: bool


class JobFacts(MemoryFacts, frozen=True, kw_only=True):
    """The state of a job, from its master or from the simulator. No field has a default.

    Attributes:
        observations: the older a step is, the less it counts in them (`specs.metrics.share_kept`).
        prior: of the most similar finished job; None: none is similar.
        is_settled: every pod is up and at work, and nothing is being changed or saved; its servers are settled then.
        steps: of all single workers in the present configuration; `least_steps`: the number that is needed.

    The others are those of `MemoryFacts` and `JobProfile`.
    """

    shape: ModelShape
    remaining_samples: float
    observations: tuple[Observation, ...]
    prior: Prior | None
    shape_version: int
    team: str
    priority: float
    is_settled: bool
    steps: int
    least_steps: int


class NotNow(msgspec.Struct, frozen=True):
    """A running job for which no plan can be made in this round, and why.

    Attributes:
        holder: its workers that the quota may reclaim all the same; None: the job is not scaled.
        shape_version: see JobProfile.
        memory: the job for a forecast of its memory, which is made earlier than other plans: servers can also run out
            of memory during a save and in the first minute. None while its servers are being changed.
    """

    job_id: str
    reason: str
    holder: Holder | None = None
    shape_version: int = 0
    memory: JobProfile | None = None


def decidable(known: JobFacts) -> JobProfile | NotNow:
    """The profile for a decision about the job, or why none can be made now."""
    outlook = _outlook(known)
    profile = _profile(known, outlook)
    if not known.is_settled:
        why = "pods are coming or going"
    elif known.steps < known.least_steps:
        why = f"{known.steps} steps in its present configuration; {known.least_steps} are needed"
    else:
        return profile
    if known.are_servers_settled and outlook is not None:
        why = f"{why}; memory: {outlook.in_words}"
    return NotNow(
        job_id=known.job_id,
        reason=why,
        holder=Holder(
            job_id=known.job_id,
            team=known.team,
            allocation=known.allocation,
            least_workers=known.limits.workers[0],
            priority=known.priority,
        ),
        shape_version=known.shape_version,
        memory=profile if known.are_servers_settled else None,
    )


def job_profile(known: JobFacts) -> JobProfile:
    """The profile for a decision about the job, whether or not one can be made now."""
    return _profile(known, _outlook(known))


def memory_wish(known: MemoryFacts) -> MemoryWish | None:
    """The change that a forecast of its memory requests, as in its profile; None also while its servers change."""
    return _wish(known, _outlook(known)) if known.are_servers_settled else None


def _wish(known: MemoryFacts, outlook: MemoryOutlook | None) -> MemoryWish | None:
    return None if outlook is None else wish_of(known.allocation, outlook.forecast, known.limits)


def _outlook(known: MemoryFacts) -> MemoryOutlook | None:
    seen = known.memory
    if seen is None:
        return None
    if seen.servers is not None and known.movable & {Change.SERVERS, Change.SERVER_SIZE}:
        # Above it, more servers bring memory. Where neither can be planned, the request for memory goes to the master.
        most = max(known.limits.parameter_server_memory_bytes[1], known.allocation.parameter_server_memory_bytes)
        if most < seen.servers.largest_bytes:
            servers = msgspec.structs.replace(seen.servers, largest_bytes=most)
            seen = msgspec.structs.replace(seen, servers=servers)
    return look_ahead(seen, known.allocation)


def _profile(known: JobFacts, outlook: MemoryOutlook | None) -> JobProfile:
    return JobProfile(
        job_id=known.job_id,
        shape=known.shape,
        allocation=known.allocation,
        remaining_samples=known.remaining_samples,
        observations=known.observations,
        prior=known.prior,
        memory=None if outlook is None else outlook.need,
        memory_wish=_wish(known, outlook),
        limits=known.limits,
        movable=known.movable,
        until_next_change_seconds=known.until_next_change_seconds,
        team=known.team,
        priority=known.priority,
        changes=known.changes,
        shape_version=known.shape_version,
    )
