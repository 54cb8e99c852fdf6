"""Disks, the node agent, ports, the clock or MLflow fail during a job.

The result is that of an undisturbed run, and nothing is left behind.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from elastrec.checkpoints import list_records, open_record
from elastrec.platform import jobs
from elastrec.platform.history import metric_names
from elastrec.platform.specs.metrics import Role, TrainingMetrics
from elastrec.platform.specs.text.loading import job_from_json
from elastrec.platform.transport import RpcClient
from elastrec.platform.transport.messages.observer import GetStatus, Status
from tests.checkpoints.verifying import verify
from tests.disks import SmallDisk, small_disk
from tests.faults.jumping_clock import JumpingClock
from tests.faults.mlflow_server import MlflowServer
from tests.faults.surroundings import Run, Site, renamed, small_job, write_model
from tests.processes import wait_for

AUC_TOLERANCE = 0.003
pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("surroundings")


@pytest.fixture(scope="module")
def store_disk(folder: Path) -> Iterator[SmallDisk]:
    with small_disk(folder / "store", 64 * 2**20) as disk:
        yield disk


@pytest.fixture(scope="module")
def node_disk(folder: Path) -> Iterator[SmallDisk]:
    with small_disk(folder / "agent", 64 * 2**20) as disk:
        yield disk


@pytest.fixture(scope="module")
def site(folder: Path, store_disk: SmallDisk, node_disk: SmallDisk) -> Iterator[Site]:
    write_model(folder / "code")
    with python_path(folder / "code"), Site(node_disk.folder, folder / "work") as running:
        yield running


@pytest.fixture(scope="module")
def prepared(site: Site, folder: Path, store_disk: SmallDisk) -> jobs.Prepared:
    job = small_job(folder / "clicks", store_disk.folder)
    return jobs.prepare(site.platform, job, jobs.job_id_for("surroundings", "never launched"))


@pytest.fixture(scope="module")
def undisturbed(site: Site, prepared: jobs.Prepared) -> TrainingMetrics:
    run = site.launch(prepared)
    metrics = run.finished()
    run.finish()
    return metrics


@contextlib.contextmanager
def python_path(*folders: Path) -> Iterator[None]:
    """The variable by which node agents and their pods find more modules."""
    before = os.environ.get("PYTHONPATH", "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([*map(str, folders), *filter(None, [before])]))
        yield


def shards_done(client: RpcClient) -> int:
    """Asks the master itself, whether or not its pod is watched."""
    return TrainingMetrics.model_validate_json(client.call(GetStatus(), Status).metrics_json).shards_done


def check_end(run: Run, undisturbed: TrainingMetrics) -> TrainingMetrics:
    metrics = run.finished()
    assert metrics.auc is not None and undisturbed.auc is not None
    assert abs(metrics.auc - undisturbed.auc) < AUC_TOLERANCE
    run.finish()
    return metrics


def test_a_full_checkpoint_disk_costs_records_and_no_training(
    site: Site, prepared: jobs.Prepared, undisturbed: TrainingMetrics, store_disk: SmallDisk
) -> None:
    run = site.launch(prepared)
    run.when(lambda found: found.checkpoint, "a first record")
    store_disk.fill()
    failure = wait_for(lambda: run.entry("could not save"), 240, "a record that finds no room")
    assert "No space left on device" in failure and "has room" in failure
    done = run.metrics().shards_done
    last = run.metrics().checkpoint
    assert last is not None
    assert verify(open_record(last)) > 0, "the last complete record is still there"
    run.when(lambda found: found.shards_done > done, "training that goes on")
    store_disk.free()
    metrics = check_end(run, undisturbed)
    assert metrics.generation == 0
    # Nothing of the failed records is left to take room.
    complete = {uri for uri, _ in list_records(str(store_disk.folder), "surroundings")}
    assert {path.as_uri() for path in (store_disk.folder / "surroundings" / "records").iterdir()} == complete


def test_a_job_waits_while_the_nodes_disk_is_full_and_then_continues(
    site: Site, prepared: jobs.Prepared, undisturbed: TrainingMetrics, node_disk: SmallDisk
) -> None:
    run = site.launch(prepared)
    run.trained(0.25)
    node_disk.fill()
    try:
        run.when(lambda found: "journal has no room" in found.reason, "a master that says what it waits for")
    finally:
        node_disk.free()
    metrics = check_end(run, undisturbed)
    assert metrics.generation == 0 and [pod.restarts for pod in metrics.pods] == [0, 0]


def test_a_killed_node_agent_and_used_ports_only_cost_time(
    site: Site, prepared: jobs.Prepared, undisturbed: TrainingMetrics
) -> None:
    run = site.launch(prepared)
    server = f"{run.job_id}-ps-0"
    # Between the choice of the port and the server's first second somebody else begins to listen there.
    address = wait_for(lambda: (pod := run.pod(Role.PARAMETER_SERVER)) and pod.address, 240, "a server's address")
    with listening_at(address):
        run.when(lambda found: any(pod.name == f"{server}-r1" for pod in found.pods), "a server with another port")
    run.trained(0.2)
    before = {pod.name: (pod.uid, pod.restarts) for pod in site.platform.launcher.pods(run.job_id)}
    client = jobs.wait_for_master(site.platform, run.job_id)
    done = shards_done(client)
    site.kill_agent()
    wait_for(lambda: shards_done(client) > done + 1, 240, "training without an agent")
    client.close()
    site.start_agent()
    assert {pod.name: (pod.uid, pod.restarts) for pod in site.platform.launcher.pods(run.job_id)} == before
    master = run.pod(Role.MASTER)
    assert master is not None
    # The new agent sees the end of what it did not start; it tries again until the port is free.
    run.kill("master")
    with listening_at(master.address):
        wait_for(lambda: (pod := run.pod(Role.MASTER)) and pod.restarts >= 2, 240, "a master that tries again")
    metrics = check_end(run, undisturbed)
    assert metrics.samples_trained == metrics.samples_total, "pods outlive their agent and their master"


@contextlib.contextmanager
def listening_at(address: str) -> Iterator[None]:
    """Somebody else listens at an address, from the moment when it is free."""
    host, _, port = address.rpartition(":")
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

        def bound() -> bool:
            try:
                listener.bind((host, int(port)))
            except OSError:
                return False
            return True

        wait_for(bound, 240, f"a free port {address}")
        listener.listen()
        yield


def test_a_clock_that_jumps_by_an_hour_moves_no_deadline_and_loses_no_record(
    prepared: jobs.Prepared, undisturbed: TrainingMetrics, folder: Path
) -> None:
    clock = JumpingClock(folder / "clock")
    with python_path(clock.folder, folder / "code"), Site(folder / "clock_agent", folder / "work") as site:
        began = time.monotonic()
        run = site.launch(prepared)
        first = run.when(lambda found: found.checkpoint, "a first record")
        clock.jump(3600)
        # Another record: none before it can be newer by the clock.
        run.when(lambda found: found.checkpoint != first and found.shards_done, "a record of an hour later")
        done, killed = run.metrics().shards_done, time.monotonic()
        restart_the_agent_an_hour_earlier(site, run, clock)
        run.when(lambda found: found.shards_done > done + 2, "training after the jump back")
        away_seconds = time.monotonic() - killed
        before = run.metrics().checkpoint
        run.when(lambda found: found.checkpoint != before, "a record of two hours earlier")
        run.kill("ps-0")
        metrics = check_end(run, undisturbed)
        assert metrics.generation == 1, "one rollback, for the server that was killed"
        explained = jobs.explanation(site.platform, run.job_id, prepared_store(prepared))
        whole_seconds = time.monotonic() - began
    assert explained.parts["without_master"] < away_seconds and explained.wall_seconds < whole_seconds
    assert sum(explained.parts.values()) == pytest.approx(explained.wall_seconds, rel=0.01)


def restart_the_agent_an_hour_earlier(site: Site, run: Run, clock: JumpingClock) -> None:
    """The clock jumps back while the agent is away and a pod is between two attempts, by the clock for another hour."""
    master = run.pod(Role.MASTER)
    assert master is not None
    run.kill("master")
    with listening_at(master.address):

        def pauses() -> bool:
            pod = run.pod(Role.MASTER)
            return pod is not None and pod.restarts >= 2 and "next attempt" in pod.message

        wait_for(pauses, 240, "a longer pause")
        site.kill_agent()
        clock.jump(-3600)
    site.start_agent()
    site.connect()


def prepared_store(prepared: jobs.Prepared) -> str:
    return job_from_json(prepared.job_json).spec.checkpoint.store


def test_mlflow_gets_all_figures_after_an_outage_until_the_end_of_training(
    site: Site, prepared: jobs.Prepared, undisturbed: TrainingMetrics, folder: Path
) -> None:
    server = MlflowServer(folder / "mlflow")
    try:
        server.start()
        platform = dataclasses.replace(site.platform, tracking_uri=server.url)
        run = Run(site, renamed(prepared))
        launched = jobs.launch(platform, run.prepared, jobs.warm_start(platform, run.prepared))
        run.when(lambda found: found.samples_trained, "training")
        server.kill()
        away = time.time()
        metrics = run.finished()
        back = time.time()
        server.start()
        assert metrics.auc is not None and undisturbed.auc is not None
        assert abs(metrics.auc - undisturbed.auc) < AUC_TOLERANCE
        # The evaluator loads the model that it has logged, and compares its predictions with those of the training.
        decision = jobs.evaluate_and_gate(platform, run.prepared, launched)
        registered = jobs.register(platform, run.prepared, launched, decision)
        jobs.finish(platform, run.job_id)
        client = MlflowClient(server.url)
        series = client.get_metric_history(launched.run_id, metric_names.SAMPLES_TRAINED)
        assert [point for point in series if away < point.timestamp / 1000 < back], "what was measured meanwhile"
        assert client.get_run(launched.run_id).info.status == "FINISHED"
        assert client.get_model_version(registered.name, registered.version).run_id == launched.run_id
        run.finish()
    finally:
        server.kill()
