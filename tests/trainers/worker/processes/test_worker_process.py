"""Workers and parameter servers as real processes: a whole small job, a kill, a user's bug."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from elastrec.checkpoints import PartManifest, commit_record, new_record_uri, open_store, predictions_folder
from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.transport.messages.directive import Mode, SaveOrder
from elastrec.platform.transport.messages.export import ExportRequest
from elastrec.trainers.export.process import export
from tests.manifests import write_manifest

pytestmark = pytest.mark.services

ROWS, BATCH = 900, 50  # as in the fixture `tiny_job`
WORKER, SERVER = "elastrec.trainers.worker", "elastrec.trainers.parameter_server"


@pytest.fixture
def start(scripted_master: Callable[..., object], pods, tmp_path: Path) -> Callable[..., object]:
    def make(job: TrainingJob, servers: int) -> object:
        open_store(job.spec.checkpoint.store).create()
        uri = str(tmp_path / "manifest.json")
        write_manifest(build_manifest(job.spec.data), uri)
        master = scripted_master(job, uri, uri, servers)
        for index in range(servers):
            pods.start(master, f"ps-{index}", SERVER)
        return master

    return make


def test_a_job_of_real_processes_trains_saves_evaluates_and_exports_the_same_model(
    start, pods, tiny_job, tmp_path: Path
) -> None:
    job = tiny_job(mode="async")
    master = start(job, servers=2)
    master.add_shards("train", ROWS, 100, shuffle=True)
    worker = pods.start(master, "worker-0", WORKER)
    master.wait_for(lambda: len(master.done) == 9)

    version = master.command(Mode.PAUSE)
    master.wait_for(lambda: master.reached.get("worker-0") == version)
    uri = new_record_uri(job.spec.checkpoint.store, "tiny", "test-job", ROWS)
    with master.changed:
        master.save = SaveOrder("save-1", uri)
        master.version += 1
    master.wait_for(lambda: len(master.saved) == 2)
    parts = [PartManifest.from_json(saved.manifest_json) for saved in master.saved.values()]
    commit_record(uri, parts, b"{}", job=job, job_id="test-job", kind="final", step=ROWS, generation=0)

    master.save = None
    master.done.clear()
    master.add_shards("evaluate", ROWS, 300)
    master.command(Mode.EVALUATE)
    master.wait_for(lambda: len(master.done) == 3)
    master.server_mode = Mode.EXIT
    master.command(Mode.EXIT)
    assert worker.wait(60) == 0, pods.log("worker-0")

    result = export(
        ExportRequest(
            job_json=job.model_dump_json(by_alias=True),
            job_id="test-job",
            store_uri=job.spec.checkpoint.store,
            record_uri=uri,
            predictions_uri=predictions_folder(job.spec.checkpoint.store, "tiny", "test-job"),
            evaluation_manifest_uri=master.evaluation,
        ),
        tmp_path,
    )
    assert result.checked_rows == ROWS
    assert result.largest_difference < 1e-6
    assert result.challenger is not None
    assert result.challenger.auc == pytest.approx(master.sketches.heads["label"].auc(), abs=1e-4)


def test_a_killed_workers_rows_are_finished_by_another_one(start, pods, tiny_job) -> None:
    job = tiny_job(mode="bsp")
    master = start(job, servers=1)
    master.finished = False
    master.add_shards("train", ROWS, 300)
    first = pods.start(master, "worker-0", WORKER)
    second = pods.start(master, "worker-1", WORKER)
    master.wait_for(lambda: len(master.workers) == 2 and bool(master.offsets))
    first.kill()
    first.wait(60)
    with master.changed:
        master.workers.remove("worker-0")
        master.version += 1
    master.give_back("worker-0")
    master.wait_for(lambda: sum(master.offsets.values()) == ROWS)
    assert len(master.done) == 3
    second.send_signal(signal.SIGTERM)
    assert second.wait(60) == 0, pods.log("worker-1")


def test_a_bug_in_the_users_model_ends_the_pod_with_its_traceback(start, pods, tiny_job, tmp_path: Path) -> None:
    (tmp_path / "users_model.py").write_text(
        "from torch import nn\n"
        "class Broken(nn.Module):\n"
        "    def __init__(self, embedding_bag_collection, schema):\n"
        "        super().__init__()\n"
        "        self.layer = nn.Linear(1, 1)\n"
        "    def forward(self, dense_features, sparse_features):\n"
        "        return undefined_name\n"
    )
    job = tiny_job(mode="async", architecture="users_model:Broken")
    master = start(job, servers=1)
    master.add_shards("train", ROWS, 300)
    worker = pods.start(master, "worker-0", WORKER, PYTHONPATH=str(tmp_path))
    assert worker.wait(120) == 2, pods.log("worker-0")
    (failure,) = master.failures
    assert not failure.retryable
    assert "undefined_name" in failure.reason
    assert "users_model.py" in failure.traceback


def test_a_pod_without_its_environment_names_what_is_missing(pods, scripted_master, tiny_job) -> None:
    master = scripted_master(tiny_job())
    worker = pods.start(master, "worker-0", WORKER, ELASTREC_MASTER_ADDRESS="")
    assert worker.wait(120) == 2
    assert "ELASTREC_MASTER_ADDRESS" in pods.log("worker-0")
