"""One run of a campaign: a real job on a real node agent, with the faults of its plan, and all checks afterwards."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from elastrec.platform import jobs
from elastrec.platform.clusters.pods import PodPhase
from elastrec.platform.jobs.identity import secret_of
from elastrec.platform.jobs.starting.launching import launch_request
from elastrec.platform.jobs.types import Prepared
from elastrec.platform.jobs.watching.masters import pod_of_master, wait_for_master
from elastrec.platform.master.machine.phases import NUMBERS_PER_TERM
from elastrec.platform.master.pods.launch import master_pod
from elastrec.platform.specs.errors import ClusterError, TransportError
from elastrec.platform.specs.metrics import Phase, Role, TrainingMetrics
from elastrec.platform.transport import RpcClient, new_token
from elastrec.trainers.parameter_server.messages import GetStats, Stats
from tests.faults.campaign.checking import DROPPED_BATCHES, HELD_BATCHES, check_accounts, check_model
from tests.faults.campaign.injury import Scene, inflict
from tests.faults.campaign.job import BATCH_ROWS, campaign_job
from tests.faults.campaign.keeping import Keeper
from tests.faults.campaign.leftovers import leftovers, shared_memory
from tests.faults.campaign.outcome import Outcome
from tests.faults.campaign.plan import Fault, Run, Strike, Victim
from tests.faults.campaign.plans import Plans
from tests.faults.campaign.site import Site, users_code
from tests.faults.campaign.watching import Hit, Watch, recovery_seconds

LONGEST_RUN_SECONDS = 900.0
_OBSERVE_SECONDS = 0.5


def drill(site: Site, run: Run, expected_auc: float | None, evidence: Path) -> Outcome:
    """Executes one run and all checks.

    Args:
        expected_auc: the AUC of the undisturbed run of the same shape; None if this is the undisturbed run.
        evidence: folder for logs and journals if a check fails.
    """
    outcome = Outcome(
        seed=run.seed, number=run.number, shape=str(run.shape),
        plan=[
            *(f"at {strike.at:.2f}: {fault}" for strike in run.strikes for fault in strike.faults),
            *(f"at {plan.at:.2f}: asked for {plan}" for plan in run.plans),
            *(f"at {plan.at:.2f}: {plan.strike}" for plan in run.plans if plan.strike is not None),
        ],
    )  # fmt: skip
    began, before = time.monotonic(), shared_memory()
    prepared = site.prepare(run)
    job_name = campaign_job(run.shape, site.data).metadata.name
    kept = Keeper(site.home / "agent", site.home / "kept")
    ports: frozenset[int] = frozenset()
    try:
        metrics = _live(site, run, prepared, kept, outcome)
        ports = frozenset(int(pod.address.rpartition(":")[2]) for pod in site.cluster.list() if pod.address)
        kept.keep()
        if metrics.phase is Phase.SUCCEEDED:
            with users_code(site.home / "models"):
                check_model(site, prepared, job_name, metrics, expected_auc, outcome)
        else:
            outcome.problems.append(f"the job {metrics.phase}: {metrics.reason}")
        jobs.finish(site.platform, prepared.job_id)
        if metrics.phase is Phase.SUCCEEDED:
            check_accounts(site, run, prepared, job_name, kept, outcome)
    except Exception as error:  # whatever a fault brings to light is a finding, and the campaign goes on
        outcome.problems.append(f"{type(error).__name__}: {error}")
        kept.keep()
        jobs.stop(site.platform, prepared.job_id, "the run failed")
    outcome.problems += leftovers(site.home, prepared.job_id, site.cluster, ports, before)
    outcome.seconds = time.monotonic() - began
    if outcome.problems:
        folder = evidence / f"run-{run.seed}-{run.number}-{uuid.uuid4().hex[:6]}"
        shutil.copytree(kept.folder, folder)
        if (site.store / job_name).exists():
            shutil.copytree(site.store / job_name, folder / "store")
        (folder / "outcome.json").write_bytes(msgspec.json.format(msgspec.json.encode(outcome), indent=1))
    shutil.rmtree(kept.folder, ignore_errors=True)
    shutil.rmtree(site.store / job_name, ignore_errors=True)
    return outcome


def _live(site: Site, run: Run, prepared: Prepared, kept: Keeper, outcome: Outcome) -> TrainingMetrics:
    """The job's life as `elastrec run` leads it, while the plan's strikes come down."""
    platform, job_id = site.platform, prepared.job_id
    request = launch_request(prepared, jobs.warm_start(platform, prepared))
    pod = master_pod(request, platform.cluster_config, new_token())
    platform.launcher.submit(pod)
    client = wait_for_master(platform, job_id)
    watch = Watch(client, partial(_rows, platform, job_id))
    scene = Scene(site.home, job_id, int(client.address.rpartition(":")[2]), watch.is_over)
    threads = _Threads()
    threads.start(watch.run)
    threads.start(partial(kept.follow, watch.is_over))
    struck: list[list[Hit]] = []
    asking = threads.start(lambda: Plans(platform, job_id, watch, scene, struck, outcome).ask_for(run.plans))

    def strike() -> None:
        during = tuple(each for each in run.strikes if each.at < 1)
        _strike_all(during, watch, scene, struck, outcome)
        asking.join()
        if run.plans:
            site.hurry()
        _strike_all(run.strikes[len(during) :], watch, scene, struck, outcome)

    striking = threads.start(strike)
    deadline = time.monotonic() + LONGEST_RUN_SECONDS
    try:
        while not ((observation := _observe(platform, job_id)) and observation.metrics.phase.is_final):
            assert time.monotonic() < deadline, f"the job hangs: {watch.last and watch.last.model_dump_json()}"
            time.sleep(_OBSERVE_SECONDS)
        # Strikes that are under way end before anything is checked; the others have no victim any more.
        striking.join()
    finally:
        watch.is_over.set()
        threads.join()
        watch.client.close()
    lost_journals, outcome.generations = divmod(observation.metrics.generation, NUMBERS_PER_TERM)
    # Each journal that was lost is a way back to a record, too; how often jobs went back before is lost with it.
    outcome.generations += lost_journals
    if not outcome.generations and not outcome.plans:
        # A server that comes later has not counted from the beginning.
        outcome.in_flight = watch.rows
    outcome.requests = [f"{one.wanted}: {one.outcome}" for one in watch.requests.values()]
    lost_workers = sum(pod.restarts for pod in observation.metrics.pods if pod.role is Role.WORKER)
    shaken = sum(fault.victim is not Victim.AGENT for fault in run.faults) * run.shape.workers
    outcome.in_flight_allowed = (lost_workers * HELD_BATCHES + shaken * DROPPED_BATCHES) * BATCH_ROWS
    for hits in struck:
        seconds = recovery_seconds(watch.samples, hits)
        if seconds is None:
            outcome.problems.append("no recovery was seen")
        else:
            outcome.recoveries.append(round(seconds, 2))
    return observation.metrics


def _observe(platform: jobs.Platform, job_id: str) -> jobs.Observation | None:
    """The job now; None while its master or the node agent does not answer. As patient as `elastrec run` is."""
    try:
        observation = jobs.observe(platform, job_id)
    except ClusterError as error:
        if not (isinstance(error.__cause__, TransportError) and error.__cause__.retryable):
            raise
        return None
    return observation if observation.reachable else None


def _rows(platform: jobs.Platform, job_id: str) -> int | None:
    """Rows whose gradients are in the parameters of the server that has most; every push goes to all of them."""
    taken = []
    try:
        master = pod_of_master(platform, job_id)
        secret = secret_of(platform, master) if master else None
        if secret is None:
            return None
        for pod in platform.launcher.pods(job_id):
            if pod.role is Role.PARAMETER_SERVER and pod.phase is PodPhase.RUNNING:
                with contextlib.closing(RpcClient(pod.address, secret.token, secret.tls)) as client:
                    stats = client.call(GetStats(), Stats, timeout_seconds=5.0)
                    taken.append(sum(rows * steps for rows, steps in stats.steps_by_rows.items()))
    except (TransportError, ClusterError):
        return None
    return max(taken, default=None)


def _strike_all(
    strikes: tuple[Strike, ...], watch: Watch, scene: Scene, struck: list[list[Hit]], outcome: Outcome
) -> None:
    for strike in strikes:
        if strike.at >= 0 and watch.wait_for_share(strike.at) is None:
            return
        if hits := _strike(strike, scene, outcome):
            struck.append(hits)


def _strike(strike: Strike, scene: Scene, outcome: Outcome) -> list[Hit]:
    hits: list[Hit] = []

    def strike_once(fault: Fault) -> None:
        time.sleep(fault.delay_seconds)
        hit = inflict(fault, scene)
        if hit is not None:
            hits.append(hit)
            outcome.faults.append(f"{fault.kind} {fault.victim}")

    threads = _Threads()
    for fault in strike.faults:
        threads.start(partial(strike_once, fault))
    threads.join()
    return hits


class _Threads:
    """Threads whose first exception is raised where they are joined."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def start(self, work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                self._errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
