"""The facts of a live job for a scaling decision, from its master's measurements."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from elastrec.platform.clusters.nodes import Node
from elastrec.platform.clusters.pods import PodStatus
from elastrec.platform.master.scaling.memory_seen import memory_seen
from elastrec.platform.scaling.amounts import Allocation, Change
from elastrec.platform.scaling.job_profile import JobFacts, NotNow
from elastrec.platform.scaling.types import Limits, ModelShape, Observation, PastChange, Prior
from elastrec.platform.specs.elasticity import SIZES
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.specs.scaling import ScalingSettings, Team
from elastrec.platform.specs.text import plain_words
from elastrec.platform.transport.messages.profile import Measured, Profile


def facts_of(
    job_id: str,
    job: TrainingJob,
    profile: Profile,
    settings: ScalingSettings,
    *,
    prior: Prior | None,
    largest_bytes: float,
) -> JobFacts | NotNow:
    """The facts of the job, or the reason why there can be no decision now.

    Args:
        prior: of the most similar finished job.
        largest_bytes: the most memory that a server of the job could have.
    """
    elasticity = job.spec.scaling
    if not elasticity.enabled:
        return NotNow(job_id, "its job file says scaling.enabled: false")
    if profile.phase != Phase.TRAINING:
        return NotNow(job_id, f"it {plain_words.phase(profile.phase)}")
    team = settings.teams.get(job.metadata.team, Team())
    allocation = Allocation.of(profile.configuration)
    now = next((each for each in profile.measured if each.configuration == profile.configuration), None)
    return JobFacts(
        job_id=job_id,
        shape=shape_of(job, profile),
        allocation=allocation,
        remaining_samples=float(profile.remaining_samples),
        observations=observations_of(profile),
        prior=prior,
        memory=memory_seen(job, profile, largest_bytes),
        changes=tuple(
            PastChange(
                before=Allocation.of(each.before), after=Allocation.of(each.after), seconds_ago=each.seconds_ago,
                asked_by=each.asked_by,
            )
            for each in profile.shape_changes
        ),
        shape_version=profile.shape_version,
        limits=_limits_of(job, max(elasticity.minimum_workers, team.minimum_workers), allocation),
        movable=movable_of(profile, job),
        until_next_change_seconds=settings.round_interval,
        team=job.metadata.team,
        priority=team.priority,
        is_settled=profile.is_settled,
        are_servers_settled=profile.are_servers_settled,
        steps=0 if now is None else now.steps_ever,
        least_steps=settings.least_steps,
    )  # fmt: skip


def largest_server_bytes(nodes: Iterable[Node], pods: Iterable[PodStatus]) -> float:
    """The maximum memory of a server: the free memory of a node, plus the memory that the server already has there.

    Args:
        pods: of the job.
    """
    free_on = {node.name: node.free.memory_bytes for node in nodes}
    servers = (pod for pod in pods if pod.role is Role.PARAMETER_SERVER and not pod.phase.is_final)
    grown = (free_on[pod.node] + pod.size.memory_bytes for pod in servers if pod.node in free_on)
    return float(max((*free_on.values(), *grown), default=0))


def _limits_of(job: TrainingJob, least_workers: int, now: Allocation) -> Limits:
    """The limits in the job file and of its team. The present size is the limit of a size without limits."""
    elasticity = job.spec.scaling
    most_servers = min(elasticity.maximum_parameter_servers, job.spec.resources.virtual_buckets)
    return Limits(
        workers=(least_workers, max(least_workers, elasticity.maximum_workers)),
        parameter_servers=(elasticity.minimum_parameter_servers, most_servers),
        **{field: _bounds_of(job, role, amount, getattr(now, field)) for field, (role, amount) in SIZES.items()},
    )


def _bounds_of(job: TrainingJob, role: str, amount: str, now: float) -> tuple[Any, Any]:
    least, most = job.spec.scaling.limits(role, amount)
    if least is None and most is None:
        return now, now
    asked = getattr(getattr(job.spec.resources, role), amount)
    return asked if least is None else least, asked if most is None else most


def movable_of(profile: Profile, job: TrainingJob) -> frozenset[Change]:
    """The changes that are possible while the job trains; sizes only if the job file has limits for them.

    If servers cannot move, the master resizes them in place or refuses.
    """
    limited = {role for role, amount in SIZES.values() if job.spec.scaling.limits(role, amount) != (None, None)}
    possible = {
        Change.WORKERS: True,
        Change.SERVERS: profile.servers_move,
        Change.WORKER_SIZE: "worker" in limited,
        Change.SERVER_SIZE: "parameter_server" in limited,
    }
    return frozenset(change for change, is_possible in possible.items() if is_possible)


def shape_of(job: TrainingJob, profile: Profile) -> ModelShape:
    """The constants of the job's throughput model."""
    return ModelShape(
        batch_size=job.spec.training.batch_size,
        dense_bytes=profile.dense_bytes,
        embedding_dimension=job.spec.model.embedding_dimension,
    )


def observations_of(profile: Profile) -> tuple[Observation, ...]:
    """One observation for every configuration with steps."""
    return tuple(observation_of(measured) for measured in profile.measured if measured.steps)


def observation_of(measured: Measured) -> Observation:
    """One observation for fitting a model, from a master's measurements in one configuration."""
    # Workers read and prepare their rows themselves, so everything except waiting for servers is T_grad of eq. 2.
    own_seconds = measured.worker_seconds - measured.pull_seconds - measured.push_seconds
    return Observation(
        allocation=Allocation.of(measured.configuration),
        iteration_seconds=measured.worker_seconds / measured.steps,
        compute_seconds=max(own_seconds, 0.0) / measured.steps,
        iterations=max(1, round(measured.steps)),
    )
