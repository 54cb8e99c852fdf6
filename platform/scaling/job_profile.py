"""The one place where a `JobProfile` is made: a policy sees live and simulated jobs in the same way."""

from __future__ import annotations

import msgspec

from elastrec.platform.scaling.amounts import Allocation, Change
from elastrec.platform.scaling.memory_outlook import MemoryOutlook, wish_of
from elastrec.platform.scaling.types import JobProfile, Limits, ModelShape, Observation, PastChange, Prior


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a master knows of its job, or the simulator in its place. No field has a default: each has to be said.

    Attributes:
        observations: the older a step is, the less it counts in them (`specs.metrics.share_kept`).
        prior: of the most similar finished job; None: none is similar.
        outlook: None: the job's memory is no subject (a simulated job without tables).
        changes: the latest ones of its shape.

    The others are those of `JobProfile`.
    """

    job_id: str
    shape: ModelShape
    allocation: Allocation
    started_with: Allocation
    remaining_samples: float
    observations: tuple[Observation, ...]
    prior: Prior | None
    outlook: MemoryOutlook | None
    changes: tuple[PastChange, ...]
    shape_version: int
    limits: Limits
    movable: frozenset[Change]
    until_next_change_seconds: float
    team: str
    priority: float


def job_profile(known: JobFacts) -> JobProfile:
    """What a decision about the job needs."""
    outlook = known.outlook
    return JobProfile(
        job_id=known.job_id,
        shape=known.shape,
        allocation=known.allocation,
        remaining_samples=known.remaining_samples,
        observations=known.observations,
        prior=known.prior,
        memory=None if outlook is None else outlook.need,
        memory_wish=None if outlook is None else wish_of(known.allocation, outlook.forecast, known.limits),
        limits=known.limits,
        movable=known.movable,
        until_next_change_seconds=known.until_next_change_seconds,
        started_with=known.started_with,
        team=known.team,
        priority=known.priority,
        changes=known.changes,
        shape_version=known.shape_version,
    )
