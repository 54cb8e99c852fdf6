"""One run of a campaign: a real job on a real node agent, struck by the faults of its plan, then checked."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from elastrec.platform import jobs
from elastrec.platform.clusters import config_of
from elastrec.platform.clusters.local import start_agent, stop_agent
from elastrec.platform.clusters.local.client import LocalCluster
from elastrec.platform.clusters.protocol import PodPhase
from elastrec.platform.data.generator import GenerateReport
from elastrec.platform.jobs.launching import launch_request, master_client, wait_for_master
from elastrec.platform.jobs.types import Prepared
from elastrec.platform.master.explanation import read_explanation
from elastrec.platform.master.launch import master_pod, pod_name
from elastrec.platform.master.ledger import read_ledger
from elastrec.platform.specs.errors import ClusterError, ElastrecError, TransportError
from elastrec.platform.specs.metrics import Phase, Role, TrainingMetrics
from elastrec.platform.transport.export_messages import ExportRequest, predictions_folder
from elastrec.trainers.parameter_server.messages import GetStats, Stats
from tests.faults.books import Size, batches_told, check_books, check_restores
from tests.faults.injury import AGENT_CORES, Scene, inflict
from tests.faults.job import (
    BATCH_ROWS,
    EPOCHS,
    MODEL_MODULE,
    ROWS,
    SHARD_BATCHES,
    SHARD_ROWS,
    SHARDS,
    campaign_job,
    install_model,
    make_data,
)
from tests.faults.leftovers import leftovers, shared_memory, torn_records
from tests.faults.plan import Fault, Run, Shape, Strike, Victim
from tests.faults.watching import Hit, Watch, recovery_seconds
from tests.processes import processes_of, wait_for

LONGEST_RUN_SECONDS = 400.0
AUC_TOLERANCE = 0.003
DROPPED_BATCHES = 4
"""A worker that loses a connection drops what it pulled, what it computes, and a push without an answer."""
HELD_BATCHES = 3 * SHARD_BATCHES
"""A worker that is lost may have trained all of its shards without having told: it reads ahead into two more."""
_OBSERVE_SECONDS = 0.5
_SIZE = Size(rows=ROWS, shard_rows=SHARD_ROWS, epochs=EPOCHS, seed=1)


class Outcome(msgspec.Struct, kw_only=True):
    """What one run came to. `problems` is empty when everything held.

    Attributes:
        faults: those that were inflicted, by name; a job may end before its last ones.
        recoveries: seconds, one per strike.
        auc: on the evaluation rows, of the exported model.
        in_flight: training steps that servers took but the master was never told of, because who made them was lost or
            dropped them: done again by somebody. None where it cannot be counted (after a rollback).
        in_flight_allowed: what was in flight at most when the faults came.
        generations: rollbacks.
    """

    seed: int
    number: int
    shape: str
    plan: list[str] = []
    faults: list[str] = []
    recoveries: list[float] = []
    problems: list[str] = []
    lost: int = 0
    repeated: int = 0
    in_flight: int | None = None
    in_flight_allowed: int = 0
    auc: float = 0.0
    generations: int = 0
    seconds: float = 0.0


@dataclass
class Site:
    """A home folder with a node agent, data, and a prepared job per shape."""

    home: Path
    data: GenerateReport
    platform: jobs.Platform
    cluster: LocalCluster
    prepared: dict[Shape, Prepared] = field(default_factory=dict)

    def prepare(self, shape: Shape) -> Prepared:
        """The job of a shape, checked once and then given a new identity for every run."""
        if shape not in self.prepared:
            job = campaign_job(shape, self.data)
            self.prepared[shape] = jobs.prepare(self.platform, job, jobs.job_id_for(job.metadata.name, "prepared"))
        prepared = self.prepared[shape]
        stem = prepared.job_id.rpartition("-")[0]
        return msgspec.structs.replace(prepared, job_id=jobs.job_id_for(stem, uuid.uuid4().hex))

    @property
    def store(self) -> Path:
        return self.home / "work" / "checkpoints"


@contextlib.contextmanager
def site_at(home: Path) -> Iterator[Site]:
    """A node agent in a home folder, stopped at the end: nothing may be left of it."""
    if home.exists():
        # Of a campaign that was interrupted: its jobs cannot be taken up again.
        stop_agent(home / "agent")
        shutil.rmtree(home)
    home.mkdir(parents=True)
    install_model(home / "models")
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "ELASTREC_HOME")}
    path = [str(home / "models"), *filter(None, [before["PYTHONPATH"]])]
    changes = {"PYTHONPATH": os.pathsep.join(path), "ELASTREC_HOME": str(home)}
    os.environ.update(changes)
    try:
        data = make_data(home / "data")
        cluster = start_agent(home / "agent", cores=AGENT_CORES)
        try:
            yield Site(home, data, jobs.Platform.connect(config_of(cluster), "", str(home / "work")), cluster)
        finally:
            cluster.close()
            stop_agent(home / "agent")
        wait_for(lambda: not processes_of(home), 20, f"no process is left: {processes_of(home)}")
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def drill(site: Site, run: Run, expected_auc: float | None, evidence: Path) -> Outcome:
    """Makes one run and checks everything about it.

    Args:
        expected_auc: of the undisturbed run of the same shape; None: this is that run.
        evidence: folder into which logs and journals go when something is wrong.
    """
    outcome = Outcome(
        seed=run.seed, number=run.number, shape=str(run.shape),
        plan=[f"at {strike.at:.2f}: {fault}" for strike in run.strikes for fault in strike.faults],
    )  # fmt: skip
    began, before = time.monotonic(), shared_memory()
    prepared = site.prepare(run.shape)
    job_name = campaign_job(run.shape, site.data).metadata.name
    kept = site.home / "kept"
    shutil.rmtree(kept, ignore_errors=True)
    ports: frozenset[int] = frozenset()
    try:
        with _in_path(site.home / "models"):
            metrics = _live(site, run, prepared, outcome)
            ports = frozenset(int(pod.address.rpartition(":")[2]) for pod in site.cluster.list() if pod.address)
            _keep(site, kept)
            if metrics.phase is Phase.SUCCEEDED:
                _check_model(site, prepared, metrics, expected_auc, outcome)
            else:
                outcome.problems.append(f"the job {metrics.phase}: {metrics.reason}")
        jobs.finish(site.platform, prepared.job_id)
        if metrics.phase is Phase.SUCCEEDED:
            _check_accounts(site, run, prepared, job_name, kept, outcome)
    except (AssertionError, ElastrecError, OSError) as error:
        outcome.problems.append(f"{type(error).__name__}: {error}")
        _keep(site, kept)
        jobs.stop(site.platform, prepared.job_id, "the run failed")
    outcome.problems += leftovers(site.home, prepared.job_id, site.cluster, ports, before)
    outcome.seconds = time.monotonic() - began
    if outcome.problems:
        folder = evidence / f"run-{run.seed}-{run.number}-{uuid.uuid4().hex[:6]}"
        shutil.copytree(kept, folder)
        shutil.copytree(site.store / job_name, folder / "store", dirs_exist_ok=True)
        (folder / "outcome.json").write_bytes(msgspec.json.format(msgspec.json.encode(outcome), indent=1))
    shutil.rmtree(kept, ignore_errors=True)
    shutil.rmtree(site.store / job_name, ignore_errors=True)
    return outcome


def _live(site: Site, run: Run, prepared: Prepared, outcome: Outcome) -> TrainingMetrics:
    """The job's life as `elastrec run` leads it, while the plan's strikes come down."""
    platform, job_id = site.platform, prepared.job_id
    request = launch_request(prepared, jobs.warm_start(platform, prepared))
    pod = master_pod(request, platform.cluster_config, platform.job_token(job_id))
    platform.cluster.create(pod)
    client = wait_for_master(platform, job_id)
    watch = Watch(master_client(platform, job_id, client.address), partial(_pushes, platform, job_id))
    client.close()
    scene = Scene(site.home, job_id, int(client.address.rpartition(":")[2]), watch.is_over)
    threads = _Threads()
    threads.start(watch.run)
    struck: list[list[Hit]] = []
    striking = threads.start(lambda: _strike_all(run.strikes, watch, scene, struck, outcome))
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
    outcome.generations = observation.metrics.generation
    if not outcome.generations:
        outcome.in_flight = watch.pushes
    lost_workers = sum(pod.restarts for pod in observation.metrics.pods if pod.role is Role.WORKER)
    shaken = sum(fault.victim is not Victim.AGENT for fault in run.faults) * run.shape.workers
    outcome.in_flight_allowed = lost_workers * HELD_BATCHES + shaken * DROPPED_BATCHES
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


def _pushes(platform: jobs.Platform, job_id: str) -> int | None:
    """Pushes that the servers took, of the one that took most; every push goes to all of them."""
    taken = []
    try:
        for pod in platform.cluster.list(job_id):
            if pod.role is Role.PARAMETER_SERVER and pod.phase is PodPhase.RUNNING:
                with contextlib.closing(master_client(platform, job_id, pod.address)) as client:
                    taken.append(client.call(GetStats(), Stats, timeout_seconds=0.5).pushes)
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


def _keep(site: Site, kept: Path) -> None:
    """Copies what pods said and journalled, before they are deleted."""
    for pod in (site.home / "agent" / "pods").glob("*/plan.1.json"):
        plan = msgspec.json.decode(pod.read_bytes())
        with contextlib.suppress(shutil.Error, FileNotFoundError):
            folder = kept / plan["environment"]["ELASTREC_POD"]
            shutil.copytree(pod.parent / "log", folder / "log", dirs_exist_ok=True)
            shutil.copytree(pod.parent / "work", folder / "work", dirs_exist_ok=True)
    kept.mkdir(exist_ok=True)
    shutil.copy(site.home / "agent" / "agent.log", kept)


def _check_model(
    site: Site, prepared: Prepared, metrics: TrainingMetrics, expected_auc: float | None, outcome: Outcome
) -> None:
    """Exports the final record as the evaluator does, loads it, and scores with it."""
    from elastrec.trainers.export.process import export

    if not metrics.shards_done == metrics.shards_total == SHARDS:
        outcome.problems.append(f"{metrics.shards_done} of {metrics.shards_total} shards are done, not {SHARDS}")
    name = campaign_job_name(prepared)
    request = ExportRequest(
        job_json=prepared.job_json,
        job_id=prepared.job_id,
        store_uri=str(site.store),
        record_uri=metrics.checkpoint or "",
        predictions_uri=predictions_folder(str(site.store), name, prepared.job_id),
        evaluation_manifest_uri=prepared.evaluation_manifest,
    )
    with tempfile.TemporaryDirectory(dir=site.home) as work:
        exported = export(request, Path(work))
    if exported.challenger is None or exported.challenger.auc is None or not exported.checked_rows:
        outcome.problems.append("the exported model could not be checked")
        return
    outcome.auc = exported.challenger.auc
    if metrics.auc is None or abs(metrics.auc - outcome.auc) > 1e-3:
        outcome.problems.append(f"the job said AUC {metrics.auc}, its exported model has {outcome.auc:.5f}")
    if expected_auc is not None and abs(outcome.auc - expected_auc) >= AUC_TOLERANCE:
        outcome.problems.append(f"AUC {outcome.auc:.5f}, undisturbed {expected_auc:.5f}")


def campaign_job_name(prepared: Prepared) -> str:
    """The name in the job file."""
    name: str = msgspec.json.decode(prepared.job_json)["metadata"]["name"]
    return name


def _check_accounts(site: Site, run: Run, prepared: Prepared, job_name: str, kept: Path, outcome: Outcome) -> None:
    ledger, story = (read(str(site.store), prepared.job_id) for read in (read_ledger, read_explanation))
    if ledger is None or story is None:
        outcome.problems.append("the job left no ledger or no explanation")
        return
    attempts = ledger.to_pylist()
    books = check_books(attempts, story, _SIZE)
    if outcome.in_flight is not None:
        outcome.in_flight -= batches_told(attempts, BATCH_ROWS)
        if not 0 <= outcome.in_flight <= outcome.in_flight_allowed:
            outcome.problems.append(
                f"{outcome.in_flight} steps were made that nobody was told of; at most {outcome.in_flight_allowed} "
                "were in flight"
            )
    outcome.lost, outcome.repeated = books.lost, books.repeated
    outcome.problems += books.problems
    if books.lost:
        outcome.problems.append(f"{books.lost} samples were never trained")
    prefix = pod_name(prepared.job_id, Role.PARAMETER_SERVER).removesuffix("-0")
    logs = {
        pod.name: "".join(file.read_text() for file in sorted((pod / "log").iterdir()))
        for pod in kept.iterdir()
        if pod.name.startswith(prefix)
    }
    outcome.problems += check_restores(logs, story, run.shape.servers)
    outcome.problems += torn_records(site.store, job_name)


@contextlib.contextmanager
def _in_path(folder: Path) -> Iterator[None]:
    before = sys.path[:]
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        # A loaded model brings its code along, from a folder that is gone when the next one is exported.
        sys.path[:] = before
        sys.modules.pop(MODEL_MODULE, None)
