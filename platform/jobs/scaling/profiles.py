"""The `JobProfile` of a live job, from its master's measurements; or why no decision can be made about the job now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from elastrec.platform.jobs.scaling.memory_outlook import memory_seen
from elastrec.platform.jobs.starting.starting_sizes import features_of
from elastrec.platform.scaling.across_jobs.quota import Holder
from elastrec.platform.scaling.amounts import Allocation, Change
from elastrec.platform.scaling.job_profile import JobFacts, job_profile
from elastrec.platform.scaling.memory_outlook import look_ahead
from elastrec.platform.scaling.types import JobProfile, Limits, ModelShape, Observation, PastChange
from elastrec.platform.scaling.warm_start import PastJob, prior_of
from elastrec.platform.specs.elasticity import SIZES
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.specs.scaling import ScalingSettings, Team
from elastrec.platform.specs.text.loading import job_from_json
from elastrec.platform.transport.messages.profile import Measured, Profile


class NotNow(msgspec.Struct, frozen=True):
    """A running job of which no plan can be made this round, and why.

    Attributes:
        holder: what it can give back all the same; None where it takes no part in scaling.
        shape_version: see JobProfile.
        memory: the job for a forecast of its memory, which waits for less than other plans do: a job is killed in the
            middle of a save, too, and in its first minute. None where its servers are being changed.
    """

    job_id: str
    reason: str
    holder: Holder | None = None
    shape_version: int = 0
    memory: JobProfile | None = None


def profile_of(
    job_id: str, profile: Profile, settings: ScalingSettings, past: Sequence[PastJob] = (), largest_bytes: float = 0.0
) -> JobProfile | NotNow:
    """The `JobProfile` that a decision about the job is made from, or why none can be made now.

    Args:
        past: finished jobs with their models.
        largest_bytes: the most memory that a server of the job could have.
    """
    job = job_from_json(profile.job_json)
    elasticity = job.spec.scaling
    if not elasticity.enabled:
        return NotNow(job_id, "its job file says scaling.enabled: false")
    if profile.phase != Phase.TRAINING:
        return NotNow(job_id, f"it is {profile.phase}")
    team = settings.teams.get(job.metadata.team, Team())
    allocation = Allocation.of(profile.configuration)
    holder = Holder(
        job_id=job_id,
        team=job.metadata.team,
        allocation=allocation,
        least_workers=max(elasticity.minimum_workers, team.minimum_workers),
        priority=team.priority,
    )
    now = next((each for each in profile.measured if each.configuration == profile.configuration), None)
    known = _job_profile(job_id, job, profile, settings, past, largest_bytes, holder)
    steps, why = 0 if now is None else now.steps_ever, ""
    if not profile.is_settled:
        why = "pods are coming or going"
    elif steps < settings.least_steps:
        why = f"{steps} steps in its present configuration; {settings.least_steps} are needed"
    if not why:
        return known
    return NotNow(job_id, why, holder, profile.shape_version, known if profile.are_servers_settled else None)


def _job_profile(
    job_id: str,
    job: TrainingJob,
    profile: Profile,
    settings: ScalingSettings,
    past: Sequence[PastJob],
    largest_bytes: float,
    holder: Holder,
) -> JobProfile:
    """The job as it is now."""
    allocation = holder.allocation
    limits, movable = _limits_of(job, holder.least_workers, allocation), movable_of(profile, job)
    if Change.SERVERS in movable or Change.SERVER_SIZE in movable:
        # Beyond it memory comes with more servers. Where neither can be planned, the master is asked for memory.
        most = max(limits.parameter_server_memory_bytes[1], allocation.parameter_server_memory_bytes)
        largest_bytes = min(largest_bytes, most)
    epoch_rows = round((profile.trained_samples + profile.remaining_samples) / job.spec.training.epochs)
    return job_profile(
        JobFacts(
            job_id=job_id,
            shape=shape_of(job, profile),
            allocation=allocation,
            started_with=Allocation.of(profile.measured[0].configuration) if profile.measured else allocation,
            remaining_samples=float(profile.remaining_samples),
            observations=observations_of(profile),
            prior=prior_of(features_of(job, epoch_rows), [each for each in past if each.job_id != job_id]),
            outlook=look_ahead(memory_seen(job, profile, largest_bytes), allocation),
            changes=tuple(
                PastChange(
                    before=Allocation.of(each.before), after=Allocation.of(each.after), seconds_ago=each.seconds_ago,
                    asked_by=each.asked_by,
                )
                for each in profile.shape_changes
            ),
            shape_version=profile.shape_version,
            limits=limits,
            movable=movable,
            until_next_change_seconds=settings.round_interval,
            team=holder.team,
            priority=holder.priority,
        )
    )  # fmt: skip


def _limits_of(job: TrainingJob, least_workers: int, now: Allocation) -> Limits:
    """Of the job's file and its team. A size without limits has those of what it is."""
    elasticity = job.spec.scaling
    most_servers = min(elasticity.maximum_parameter_servers, job.spec.resources.virtual_buckets)
    return Limits(
        workers=(least_workers, max(least_workers, elasticity.maximum_workers)),
        parameter_servers=(min(elasticity.minimum_parameter_servers, most_servers), most_servers),
        **{field: _bounds_of(job, role, amount, getattr(now, field)) for field, (role, amount) in SIZES.items()},
    )


def _bounds_of(job: TrainingJob, role: str, amount: str, now: float) -> tuple[Any, Any]:
    least, most = job.spec.scaling.limits(role, amount)
    if least is None and most is None:
        return now, now
    asked = getattr(getattr(job.spec.resources, role), amount)
    return asked if least is None else least, asked if most is None else most


def movable_of(profile: Profile, job: TrainingJob) -> frozenset[Change]:
    """What the job's master changes while the job trains, and of sizes what the job file has limits for.

    Where servers do not move, the master resizes them in place or refuses.
    """
    limited = {role for role, amount in SIZES.values() if job.spec.scaling.limits(role, amount) != (None, None)}
    possible = {
        Change.WORKERS: True,
        Change.SERVERS: profile.servers_move,
        Change.WORKER_SIZE: "worker" in limited,
        Change.SERVER_SIZE: "parameter_server" in limited,
    }
    return frozenset(change for change, is_possible in possible.items() if is_possible)


def holders_of(profiles: Iterable[JobProfile | NotNow]) -> list[Holder]:
    """The jobs that can give workers back when another team claims its share."""
    holders = []
    for each in profiles:
        if isinstance(each, NotNow):
            holders += [each.holder] if each.holder else []
        else:
            holders.append(
                Holder(
                    job_id=each.job_id,
                    team=each.team,
                    allocation=each.allocation,
                    least_workers=each.limits.workers[0],
                    priority=each.priority,
                )
            )
    return holders


def shape_of(job: TrainingJob, profile: Profile) -> ModelShape:
    """The constants of the job's throughput model."""
    return ModelShape(
        batch_size=job.spec.training.batch_size,
        dense_bytes=profile.dense_bytes,
        embedding_dimension=job.spec.model.embedding_dimension,
    )


def observations_of(profile: Profile) -> tuple[Observation, ...]:
    """One for every configuration in which steps were made."""
    return tuple(observation_of(measured) for measured in profile.measured if measured.steps)


def observation_of(measured: Measured) -> Observation:
    """One observation to fit a model to, from a master's measurements in one configuration."""
    # Workers read and prepare their rows themselves, so all but waiting for servers is T_grad of eq. 2.
    own_seconds = measured.worker_seconds - measured.pull_seconds - measured.push_seconds
    return Observation(
        allocation=Allocation.of(measured.configuration),
        iteration_seconds=measured.worker_seconds / measured.steps,
        compute_seconds=max(own_seconds, 0.0) / measured.steps,
        iterations=max(1, round(measured.steps)),
    )
