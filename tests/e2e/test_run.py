"""`elastrec run`, start to end, with real processes on a real node agent."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import mlflow
import pandas as pd
import pyarrow.parquet as pq
import pytest

from benchmarks.common.groups import limit_cores, pod_groups
from benchmarks.common.nodes.running import offered
from elastrec.platform.clusters import encode_config
from elastrec.platform.clusters.local import find_agent
from elastrec.platform.clusters.owned_memory import OWNER_BYTES
from elastrec.platform.data.generating.generator import GenerateReport
from elastrec.platform.specs.metrics import Role
from tests.cluster_without_volumes import ENTRY_POINT, NAME, without_volumes
from tests.e2e.conftest import ROWS_PER_DAY, write_job
from tests.processes import Elastrec, elastrec_at, pod_processes, wait_for

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def elastrec(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elastrec]:
    with elastrec_at(tmp_path_factory.mktemp("home")) as command_line:
        yield command_line


def test_a_job_of_two_workers_and_two_servers_trains_every_sample_and_registers_a_model(
    elastrec: Elastrec, click_log: GenerateReport
) -> None:
    file = write_job(elastrec.home, click_log)
    outcome = elastrec.json("run", str(file), "--from", "2026-01-01")
    assert outcome["shards_done"] == outcome["shards_total"] == math.ceil(ROWS_PER_DAY / (256 * 20))
    assert outcome["samples_trained"] == outcome["samples_total"] == ROWS_PER_DAY
    best = click_log.days[1].best_auc
    assert best is not None
    assert best - 0.15 < outcome["auc"] <= best + 0.01
    assert outcome["normalized_entropy"] < 1.0
    assert outcome["version"] == "1" and outcome["is_champion"]
    assert elastrec.jobs() == []

    mlflow.set_tracking_uri(f"sqlite:///{elastrec.home}/mlflow.db")
    model = mlflow.pyfunc.load_model(outcome["model_uri"])
    day = next(Path(click_log.spec.path, "day=2026-01-02").glob("*.parquet"))
    rows: pd.DataFrame = pq.read_table(day).slice(0, 100).to_pandas()
    scores = model.predict(rows[list(model.metadata.metadata["inputs"])])
    assert scores["probability"].between(0, 1).all() and not scores["is_bad"].any() and len(scores) == 100
    run = mlflow.MlflowClient().get_run(outcome["run_id"])
    assert run.info.status == "FINISHED"
    assert run.inputs.dataset_inputs

    found = elastrec.json("explain", outcome["job_id"])
    assert sum(found["parts"].values()) == pytest.approx(found["wall_seconds"], rel=0.01)
    assert run.data.metrics["job/goodput"] == pytest.approx(found["goodput"], abs=0.01) and found["goodput"] > 0
    assert "explanation.txt" in [file.path for file in mlflow.MlflowClient().list_artifacts(outcome["run_id"])]
    ledger = elastrec.json("ledger", outcome["job_id"])
    assert ledger["totals"]["train"]["kept"] == ROWS_PER_DAY and ledger["totals"]["train"]["repeated"] == 0
    record = elastrec.json("inspect", f"{elastrec.home}/work/checkpoints", "--job", "small")
    assert record["job_id"] == outcome["job_id"] and record["rows"] > 0 and record["dense_elements"] > 0


def test_the_next_day_continues_from_the_last_and_is_compared_with_the_champion(
    elastrec: Elastrec, click_log: GenerateReport
) -> None:
    file = write_job(elastrec.home, click_log)
    done = elastrec.call("run", str(file), "--from", "2026-01-02", "--output", "json")
    assert done.returncode == 0, done.stderr
    assert "Continues from" in done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["version"] == "2"
    assert "champion" in outcome["gate"]


def test_render_shows_the_pods_and_creates_none(elastrec: Elastrec, click_log: GenerateReport) -> None:
    # Any text of a job file may have a URI; the store and the data of this test have none with a password.
    file = write_job(elastrec.home, click_log, history={"experiment": "rows of webhdfs://me:geheim@host"})
    pods = elastrec.json("render", str(file), "--from", "2026-01-01")
    text = json.dumps(pods)
    full = elastrec.call("render", str(file), "--from", "2026-01-01", "--full").stdout
    assert "rows of webhdfs://me:***@host" in full and "geheim" not in full + text
    # With a password in it, the launch is a secret of the master's pod.
    assert pods[0]["pod"]["secrets"]["launch.json"] == "***" and not pods[0]["pod"]["files"]
    assert len(pods) == 5
    assert {pod["pod"]["startup_cores"] for pod in pods} == {1.0}
    token = (elastrec.home / "agent" / "token").read_text().strip()
    assert token not in text
    assert elastrec.jobs() == []


def test_render_shows_the_process_that_owns_the_memory_where_the_cluster_has_no_volumes(
    elastrec: Elastrec, click_log: GenerateReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_job(elastrec.home, click_log, checkpoint={"memory": "64Mi"})
    volumes = [request["pod"]["memory_volume"] for request in elastrec.json("render", str(file))]
    assert [volume and volume["name"] for volume in volumes] == [None, "ps-0", "ps-1", None, None]
    cluster = find_agent(elastrec.home / "agent")
    assert cluster is not None
    (tmp_path / "cluster.json").write_text(encode_config(without_volumes(cluster.config)))
    monkeypatch.setenv("ELASTREC_CLUSTER", str(tmp_path / "cluster.json"))
    with offered(tmp_path / "packages", NAME, ENTRY_POINT):
        pods = [request["pod"] for request in elastrec.json("render", str(file))]
    owner = f"-m elastrec.trainers.memory_owner {64 << 20} -m elastrec.trainers.parameter_server"
    assert [" ".join(pod["command"][1:]) == owner for pod in pods] == [False, True, True, False, False]
    assert {pod["memory_volume"] for pod in pods} == {None}
    assert {pod["size"]["memory_bytes"] for pod in pods[1:3]} == {(1 << 30) + (64 << 20) + OWNER_BYTES}


def test_a_job_that_the_cluster_can_never_hold_is_refused_before_anything_starts(
    elastrec: Elastrec, click_log: GenerateReport
) -> None:
    file = write_job(elastrec.home, click_log)
    done = elastrec.call("run", str(file), "--set", "spec.resources.worker.cores=4000")
    assert done.returncode == 2
    assert "spec.resources.worker.cores" in done.stderr
    assert elastrec.jobs() == []


def test_a_bug_in_the_users_model_fails_the_job_at_once_with_its_traceback(
    elastrec: Elastrec, click_log: GenerateReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    (elastrec.home / "my_models.py").write_text(
        "import torch\n"
        "class Broken(torch.nn.Module):\n"
        "    def __init__(self, embedding_bag_collection, schema):\n"
        "        super().__init__()\n"
        "        self.tables = embedding_bag_collection\n"
        "        self.last = torch.nn.Linear(len(schema.sparse_names) * schema.embedding_dimension, 1)\n"
        "    def forward(self, dense_features, sparse_features):\n"
        "        if len(dense_features) > 4:\n"
        "            raise RuntimeError('planted bug')\n"
        "        return self.last(self.tables(sparse_features).values()).squeeze(1)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(elastrec.home))
    file = write_job(elastrec.home, click_log, model={"architecture": "my_models:Broken", "embedding_dimension": 8})
    # The agent's own environment is that of its start: one that knows the module's folder is needed.
    elastrec.close()
    elastrec.start_agent()
    done = elastrec.call("run", str(file), "--from", "2026-01-01")
    assert done.returncode == 1
    assert "planted bug" in done.stderr and "my_models.py" in done.stderr
    assert elastrec.jobs() == []


def test_stop_ends_a_running_job_and_removes_its_pods(elastrec: Elastrec, click_log: GenerateReport) -> None:
    file = write_job(elastrec.home, click_log)
    changes = ("--set", "spec.training.epochs=50", "--set", "spec.resources.startup_cores=3")
    running = elastrec.start("run", str(file), "--from", "2026-01-01", *changes)
    try:
        seen = wait_for(lambda: next((j for j in elastrec.jobs() if j.samples_trained), None), 240, "training")
        job = seen.job
        at_work = {pod.name for pod in seen.pods if pod.samples or pod.role is Role.PARAMETER_SERVER}
        limits = {pod: limit_cores(group) for pod, group in pod_groups(job).items()}
        assert {limits[pod] for pod in {*at_work, f"{job}-master"} if limits} <= {1.0}, limits
        table = elastrec.call("status")
        assert job in table.stdout and "Training" in table.stdout
        assert elastrec.call("logs", job).returncode == 0
        assert elastrec.json("stop", job)["stopped"]
        assert pod_processes(job, "", elastrec.home) == []
        _, errors = running.communicate(timeout=240)
        assert running.returncode == 1, errors
    finally:
        running.kill()
        running.communicate()


def test_another_policy_is_simulated_on_the_jobs_that_have_run(elastrec: Elastrec) -> None:
    # What the tests before this one have left in MLflow: two jobs that succeeded, one that failed, one that was ended.
    client = mlflow.MlflowClient(f"sqlite:///{elastrec.home}/mlflow.db")
    experiment = client.get_experiment_by_name("elastrec")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    trained = {
        run.data.tags["elastrec.job_id"]: sum(
            run.data.metrics.get(f"time/{part}_seconds", 0.0)
            for part in ("training", "waiting_for_data", "redoing_lost_work")
        )
        for run in runs
        if run.info.status == "FINISHED"
    }
    file = elastrec.home / "what_if.yaml"
    file.write_text(
        "workload: {history: {experiment: elastrec}}\n"
        "cluster: {nodes: 2, cores: 8, memory: 32Gi}\n"
        "policies: [static, three-stage]\n"
        "trouble: {start_time: 0s, noise: 0, stragglers: 0, hot_servers: 0}\n"
    )
    found = elastrec.json("simulate", str(file))
    assert found["simulated"] and found["jobs"] == len(trained) == 2
    # Without starts and trouble a job that keeps what it had takes as long as it really trained.
    static, ours = (each["completion_seconds"] for each in found["policies"])
    assert static == pytest.approx(trained, rel=0.05)
    assert set(ours) == set(trained)
    left_out = [note for note in found["notes"] if note.startswith("left out")]
    assert left_out and not any(job_id in note for note in left_out for job_id in trained)
