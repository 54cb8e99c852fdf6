"""The run in MLflow that a launch uses: of which training it has the figures, and what is left of a refused launch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from elastrec.checkpoints import conclude
from elastrec.platform.clusters.local.config import LocalConfig
from elastrec.platform.clusters.pods import PodSize, PodSpec
from elastrec.platform.history import History
from elastrec.platform.jobs import Platform, Prepared, launch
from elastrec.platform.jobs.starting.launching import launch_request
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.metrics import Phase, Role
from tests.operators.steps import ALLOCATION
from tests.platform.jobs.starting.test_resuming import prepared as prepared_in
from tests.platform.jobs.starting.test_resuming import saved, term_taken
from tests.platform.master.fakes import FakeCluster, FakeLauncher

JOB_ID = "clicks-1"


@pytest.fixture
def cluster() -> FakeCluster:
    def refuse(operation: str, name: str) -> None:
        if operation == "create":
            raise ClusterError("the quota is exhausted")

    made = FakeCluster()
    made.before = refuse
    return made


@pytest.fixture
def platform(cluster: FakeCluster, tmp_path: Path) -> Platform:
    """A cluster that refuses pods, and MLflow in a file."""
    config = LocalConfig(address="", token="token")
    tracking = f"sqlite:///{tmp_path}/mlflow.db"
    return Platform(FakeLauncher(cluster), config, tracking, str(tmp_path / "work"), tmp_path)  # type: ignore[arg-type]


@pytest.fixture
def history(platform: Platform) -> History:
    return History(platform.tracking_uri, "elastrec")


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    for name in ("training", "evaluation"):
        (tmp_path / name).write_text("{}")
    return msgspec.structs.replace(
        prepared_in(str(tmp_path / "store")),
        training_manifest=str(tmp_path / "training"),
        evaluation_manifest=str(tmp_path / "evaluation"),
    )


@pytest.fixture
def launched(platform: Platform, history: History, prepared: Prepared) -> Callable[[], list[str]]:
    """Launches the job, which the cluster refuses; returns the names of the job's runs, the newest first."""

    def again() -> list[str]:
        with pytest.raises(ClusterError, match="quota"):
            launch(platform, prepared, ALLOCATION)
        return [history._client.get_run(record.run_id).info.run_name for record in history.job_records()]

    return again


FIRST, SECOND = "clicks 2026-01-01", "clicks 2026-01-01 (attempt 2)"


def test_a_job_that_is_trained_anew_has_a_run_of_its_own(
    history: History, prepared: Prepared, launched: Callable[[], list[str]], tmp_path: Path
) -> None:
    """As `elastrec run` with the key of a run whose model is published."""
    history.finish_run(history.start_run(prepared, ALLOCATION), Phase.SUCCEEDED)
    store = str(tmp_path / "store")
    term_taken(store, JOB_ID)
    saved(launch_request(prepared, ALLOCATION), 20, "final")
    conclude(store, "clicks", JOB_ID)
    assert launched() == [SECOND, FIRST]


def test_a_job_that_continues_from_its_record_keeps_its_run(
    history: History, prepared: Prepared, launched: Callable[[], list[str]], tmp_path: Path
) -> None:
    history.finish_run(history.start_run(prepared, ALLOCATION), Phase.SUCCEEDED)
    term_taken(str(tmp_path / "store"), JOB_ID)
    saved(launch_request(prepared, ALLOCATION), 20, "final")
    assert launched() == [FIRST]


def test_a_launch_that_the_cluster_refuses_leaves_no_open_run(
    history: History, launched: Callable[[], list[str]]
) -> None:
    launched()
    (record,) = history.job_records()
    assert history.open_run(JOB_ID) == "" and record.phase is Phase.FAILED
    assert record.reason == "the job could not be launched: the quota is exhausted"


def test_the_run_of_a_job_that_runs_stays_open_if_another_launch_of_it_is_refused(
    platform: Platform, cluster: FakeCluster, history: History, prepared: Prepared
) -> None:
    """Of two launches at once, one creates the pod; the other one gets no answer of the cluster."""
    refuse = cluster.before

    def create_and_refuse(operation: str, name: str) -> None:
        if operation == "create":
            cluster.before = lambda operation, name: None
            pod = PodSpec(name=name, job=JOB_ID, role=Role.MASTER, command=("x",), size=PodSize(1, 1))
            cluster.create(pod)
            cluster.before = refuse
            refuse(operation, name)

    cluster.before = create_and_refuse
    with pytest.raises(ClusterError, match="quota"):
        launch(platform, prepared, ALLOCATION)
    assert history.open_run(JOB_ID)
