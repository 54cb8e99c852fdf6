"""From running jobs to plans and back: profiles are read from masters, plans are handed to them.

The decision itself is `platform.scaling`, which knows neither clusters nor masters. Only workers change live: they
come and go freely, because shards do. What else a plan wants is put to the master, whose refusal is the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import structlog

from elastrec.platform.jobs.scaling.memory_outlook import memory_wish
from elastrec.platform.jobs.scaling.overheads import overheads
from elastrec.platform.jobs.scaling.standing import room_of, standing
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.jobs.watching.masters import live_master
from elastrec.platform.jobs.watching.observation import jobs, observe
from elastrec.platform.scaling.across_jobs.one_change import one_change
from elastrec.platform.scaling.across_jobs.one_change import told as told_verdict
from elastrec.platform.scaling.across_jobs.quota import Holder
from elastrec.platform.scaling.across_jobs.shared_round import decide_shared
from elastrec.platform.scaling.amounts import Allocation, Change, PriceList
from elastrec.platform.scaling.policy import Round, View, load_policy
from elastrec.platform.scaling.search.objectives import Rules
from elastrec.platform.scaling.types import JobProfile, Limits, ModelShape, Observation, Plan
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.specs.scaling import ScalingSettings, Team
from elastrec.platform.specs.shape import PlacesChange
from elastrec.platform.specs.text.loading import job_from_json
from elastrec.platform.transport.messages.observer import ChangeShape, ShapeAnswer
from elastrec.platform.transport.messages.profile import GetProfile, Measured, Profile

log = structlog.get_logger(__name__)


class NotNow(msgspec.Struct, frozen=True):
    """A running job of which no plan can be made this round, and why.

    Attributes:
        holder: what it can give back all the same; None where it takes no part in scaling.
    """

    job_id: str
    reason: str
    holder: Holder | None = None


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a plan.

    Attributes:
        changed: the master has begun to change the job; `request_id`: of that, its outcome is in the job's status.
        reason: why the plan was made, or why the master refused it.
    """

    job_id: str
    changed: bool
    before: str
    after: str
    reason: str
    request_id: str = ""


def training_jobs(platform: Platform) -> list[str]:
    """Ids of the jobs that train now.

    Raises:
        ClusterError: the cluster cannot be reached.
    """
    return [found.metrics.job for found in jobs(platform) if found.metrics.phase is Phase.TRAINING]


def profile(platform: Platform, job_id: str, settings: ScalingSettings) -> JobProfile | NotNow:
    """What a decision about the job needs, or why there is none to be made now.

    Raises:
        ClusterError: the job's master does not answer.
    """
    told = ask_profile(platform, job_id)
    if told is None:
        return NotNow(job_id, "it is no longer in the cluster")
    found = profile_of(job_id, told, settings)
    if isinstance(found, NotNow):
        return found
    job = job_from_json(told.job_json)
    (now,) = [each for each in found.observations if each.allocation == found.allocation]
    speed = found.allocation.workers * found.shape.batch_size / now.iteration_seconds
    wish = memory_wish(job, told, found.allocation, speed, float(_largest_server_bytes(platform, job_id)))
    return msgspec.structs.replace(found, memory_wish=wish)


def _largest_server_bytes(platform: Platform, job_id: str) -> int:
    """The most memory that a server of the job could have: what is free on a node, and what it has there already."""
    has: dict[str, int] = {}
    for pod in platform.launcher.pods(job_id):
        if pod.role is Role.PARAMETER_SERVER and not pod.phase.is_final:
            has[pod.node] = max(has.get(pod.node, 0), pod.size.memory_bytes)
    return max((node.free.memory_bytes + has.get(node.name, 0) for node in platform.launcher.nodes()), default=0)


def ask_profile(platform: Platform, job_id: str) -> Profile | None:
    """What the job's master has measured; None when there is no such job.

    Raises:
        ClusterError: the job's master does not answer.
    """
    with live_master(platform, job_id) as client:
        return None if client is None else client.call(GetProfile(), Profile, timeout_seconds=10.0)


def profile_of(job_id: str, told: Profile, settings: ScalingSettings) -> JobProfile | NotNow:
    """The same from the master's answer alone."""
    job = job_from_json(told.job_json)
    elasticity = job.spec.scaling
    if not elasticity.enabled:
        return NotNow(job_id, "its job file says scaling.enabled: false")
    if told.phase != Phase.TRAINING:
        return NotNow(job_id, f"it is {told.phase}")
    team = settings.teams.get(job.metadata.team, Team())
    holder = Holder(
        job_id=job_id,
        team=job.metadata.team,
        allocation=Allocation.of(told.configuration),
        least_workers=max(elasticity.minimum_workers, team.minimum_workers),
        priority=team.priority,
    )
    if not told.is_settled:
        return NotNow(job_id, "pods are coming or going", holder)
    steps = next((m.steps for m in told.measured if m.configuration == told.configuration), 0)
    if steps < settings.least_steps:
        return NotNow(job_id, f"{steps} steps in its present configuration; {settings.least_steps} are needed", holder)
    return JobProfile(
        job_id=job_id,
        shape=shape_of(job, told),
        allocation=Allocation.of(told.configuration),
        started_with=Allocation.of(told.measured[0].configuration),
        remaining_samples=float(told.remaining_samples),
        observations=observations_of(told),
        limits=Limits(workers=(holder.least_workers, max(holder.least_workers, elasticity.maximum_workers))),
        movable=frozenset({Change.WORKERS}),
        until_next_change_seconds=settings.round_interval,
        team=holder.team,
        priority=holder.priority,
    )


def holders_of(found: Iterable[JobProfile | NotNow]) -> list[Holder]:
    """The jobs that can give workers back when somebody asks for what is theirs."""
    holders = []
    for each in found:
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


def view(platform: Platform, settings: ScalingSettings) -> View:
    """The cluster as policies see it.

    Raises:
        ClusterError: the cluster cannot be reached.
    """
    prices = PriceList(core_hour=settings.prices.core_hour, gibibyte_hour=settings.prices.gibibyte_hour)
    return View(
        capacity=room_of(platform.launcher.nodes()),
        prices=prices,
        overheads=overheads(platform, settings),
        rules=Rules(max_slowdown=settings.max_slowdown),
    )


def plan(platform: Platform, settings: ScalingSettings, job_ids: list[str] | None = None) -> tuple[Round, list[NotNow]]:
    """One round over the running jobs, nothing applied.

    Args:
        job_ids: default: all that train.

    Raises:
        ClusterError: the cluster or a master does not answer, or a job of `job_ids` is not in the cluster.
        ScalingError: there is no such policy.
    """
    policy = load_policy(settings.policy)
    if job_ids is None:
        found = [profile(platform, job_id, settings) for job_id in training_jobs(platform)]
    else:
        found = [_profile_unless_over(platform, job_id, settings) for job_id in job_ids]
    profiles = [each for each in found if isinstance(each, JobProfile)]
    known = standing(platform, settings, holders_of(found))
    decided = decide_shared(policy, profiles, view(platform, settings), known)
    return with_forecasts(decided, profiles), [each for each in found if isinstance(each, NotNow)]


def _profile_unless_over(platform: Platform, job_id: str, settings: ScalingSettings) -> JobProfile | NotNow:
    """`profile` of a job that may be over: its master has nothing to measure any more, and refuses to be asked."""
    phase = observe(platform, job_id).metrics.phase
    return NotNow(job_id, f"it is over: {phase}") if phase.is_final else profile(platform, job_id, settings)


def with_forecasts(decided: Round, profiles: Sequence[JobProfile]) -> Round:
    """The round with what memory forecasts ask for; why which change goes first is in the log."""
    found, verdicts = one_change(decided, profiles)
    for job_id, verdict in verdicts.items():
        log.info("one_change", job_id=job_id, verdict=told_verdict(verdict))
    return found


def apply(platform: Platform, wanted: Plan) -> Applied:
    """Hands a plan to the job's master.

    Raises:
        ClusterError: the master does not answer.
    """
    before, after = wanted.before, wanted.allocation

    def answer(*, changed: bool, reason: str, request_id: str = "") -> Applied:
        applied = Applied(
            job_id=wanted.job_id, changed=changed, before=str(before), after=str(after), reason=reason,
            request_id=request_id,
        )  # fmt: skip
        log.info("plan_applied" if changed else "plan_not_applied", **msgspec.structs.asdict(applied))
        return applied

    if not wanted.changes:
        return answer(changed=False, reason=wanted.reason)
    with live_master(platform, wanted.job_id) as client:
        if client is None:
            return answer(changed=False, reason="the job is no longer in the cluster")
        now = Allocation.of(client.call(GetProfile(), Profile, timeout_seconds=10.0).configuration)
        if now != before:
            return answer(changed=False, reason=f"the plan is stale: the job has {now} meanwhile")
        done = client.call(_change(wanted), ShapeAnswer, timeout_seconds=15.0, remember=True)
    reason = wanted.reason if done.accepted else done.reason
    return answer(changed=done.accepted, reason=reason, request_id=done.request_id)


def _change(wanted: Plan) -> ChangeShape:
    changes, after = wanted.changes, wanted.allocation
    is_server_size = Change.SERVER_SIZE in changes
    workers = PlacesChange(
        count=after.workers if Change.WORKERS in changes else None,
        cores=after.worker_cores if Change.WORKER_SIZE in changes else None,
    )
    servers = PlacesChange(
        count=after.parameter_servers if Change.SERVERS in changes else None,
        cores=after.parameter_server_cores if is_server_size else None,
        memory_bytes=after.parameter_server_memory_bytes if is_server_size else None,
    )
    return ChangeShape(change={Role.WORKER: workers, Role.PARAMETER_SERVER: servers}, live_only=True)


def shape_of(job: TrainingJob, told: Profile) -> ModelShape:
    """The constants of the job's throughput model."""
    return ModelShape(
        batch_size=job.spec.training.batch_size,
        dense_bytes=told.dense_bytes,
        embedding_dimension=job.spec.model.embedding_dimension,
    )


def observations_of(told: Profile) -> tuple[Observation, ...]:
    """One for every configuration in which steps were made."""
    return tuple(observation_of(measured) for measured in told.measured if measured.steps)


def observation_of(measured: Measured) -> Observation:
    """What a model is fitted to, of what a master has measured in one configuration."""
    # Workers read and prepare their rows themselves, so all but waiting for servers is T_grad of eq. 2.
    own_seconds = measured.worker_seconds - measured.pull_seconds - measured.push_seconds
    return Observation(
        allocation=Allocation.of(measured.configuration),
        iteration_seconds=measured.worker_seconds / measured.steps,
        compute_seconds=max(own_seconds, 0.0) / measured.steps,
        iterations=measured.steps,
    )
