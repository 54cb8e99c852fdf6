"""The run in MLflow that a launch uses: of which training it has the figures, and what is left of a refused launch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from elastrec.checkpoints import Store, StoreError, conclude, read_launch
from elastrec.platform.clusters.local.config import LocalConfig
from elastrec.platform.clusters.pods import EndReason, PodSize, PodSpec
from elastrec.platform.history import History, Point
from elastrec.platform.history import metric_names as names
from elastrec.platform.jobs import Platform, Prepared, launch
from elastrec.platform.jobs.starting import kept_launch, launching
from elastrec.platform.jobs.starting.kept_launch import keep_launch
from elastrec.platform.jobs.starting.launching import RUN_LABEL, launch_request
from elastrec.platform.master.reporting.unsent_metrics import read_points, write_points, write_result
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.metrics import Phase, Role, TrainingMetrics
from elastrec.platform.transport.messages.job import Done
from elastrec.platform.transport.messages.observer import TakeOver
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


def ended_master(cluster: FakeCluster) -> PodSpec:
    """The pod of the job's master, which has ended with the job; from now on, the cluster accepts pods."""
    cluster.before = lambda operation, name: None
    pod = PodSpec(name=f"{JOB_ID}-master", job=JOB_ID, role=Role.MASTER, command=("x",), size=PodSize(1, 1))
    cluster.create(pod)
    cluster.end(pod.name, EndReason.COMPLETED, 0)
    return pod


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


def test_a_second_training_that_goes_on_after_it_failed_is_not_in_the_run_of_the_first_one(
    history: History, prepared: Prepared, launched: Callable[[], list[str]], tmp_path: Path
) -> None:
    """As `elastrec run` with the key of a run whose model is published, which is killed and called again."""
    first = history.start_run(prepared, ALLOCATION, begins=True, earlier_terms=0)
    history.finish_run(first, Phase.SUCCEEDED)
    store = str(tmp_path / "store")
    term_taken(store, JOB_ID)
    conclude(store, "clicks", JOB_ID)
    assert launched() == [SECOND, FIRST]
    term_taken(store, JOB_ID, "another master")
    saved(launch_request(prepared, ALLOCATION), 20, term=2)
    assert launched() == ["clicks 2026-01-01 (attempt 3)", SECOND, FIRST]


@pytest.mark.parametrize("outcome", [Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED])
def test_a_run_that_stayed_open_gets_no_figures_of_the_next_training_and_is_closed_with_the_outcome_of_its_own(
    history: History, prepared: Prepared, launched: Callable[[], list[str]], tmp_path: Path, outcome: Phase
) -> None:
    """MLflow was away when the first training ended."""
    store = str(tmp_path / "store")
    keep_launch(store, prepared, ALLOCATION, earlier_terms=0)
    run_id = history.start_run(prepared, ALLOCATION)
    history.log_series(run_id, [Point(names.LOSS, 0.5, 100, 1e9)])
    write_points(store, "clicks", JOB_ID, [Point(names.LOSS, 0.4, 200, 2e9)])
    if outcome is Phase.SUCCEEDED:
        term_taken(store, JOB_ID)
        conclude(store, "clicks", JOB_ID)
    elif outcome is Phase.FAILED:
        write_result(store, "clicks", JOB_ID, TrainingMetrics(job=JOB_ID, phase=outcome, reason="bug"))
    assert launched() == [SECOND, FIRST]
    second, first = history.job_records()
    assert (first.run_id, first.phase) == (run_id, outcome) and first.ended_unix_seconds is not None
    if outcome is Phase.FAILED:
        assert first.reason == "bug"
    assert history.series(run_id, names.LOSS) == [(100, 0.5), (200, 0.4)] and not second.metrics
    assert read_points(store, "clicks", JOB_ID) == []


def test_figures_of_a_training_during_which_mlflow_was_away_are_not_in_the_run_of_the_next_one(
    history: History, prepared: Prepared, launched: Callable[[], list[str]], tmp_path: Path
) -> None:
    store = str(tmp_path / "store")
    keep_launch(store, prepared, ALLOCATION, earlier_terms=0)
    write_points(store, "clicks", JOB_ID, [Point(names.LOSS, 0.4, 200, 2e9)])
    assert launched() == [SECOND, FIRST]
    second, first = history.job_records()
    assert history.series(first.run_id, names.LOSS) == [(200, 0.4)] and not second.metrics


@pytest.mark.parametrize("begins", [True, False])
def test_a_launch_without_mlflow_keeps_the_figures_of_its_own_training_alone(
    prepared: Prepared, launched: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins: bool
) -> None:
    store, points = str(tmp_path / "store"), [Point(names.LOSS, 0.4, 200, 2e9)]
    write_points(store, "clicks", JOB_ID, points)
    if not begins:
        term_taken(store, JOB_ID)
        saved(launch_request(prepared, ALLOCATION), 20)
    monkeypatch.setattr(launching, "wait_for_tracking", lambda *values: False)
    assert launched() == []
    assert read_points(store, "clicks", JOB_ID) == ([] if begins else points)


def test_an_open_run_without_figures_is_that_of_the_next_launch(
    history: History, prepared: Prepared, launched: Callable[[], list[str]], tmp_path: Path
) -> None:
    keep_launch(str(tmp_path / "store"), prepared, ALLOCATION, earlier_terms=0)
    history.start_run(prepared, ALLOCATION)
    assert launched() == [FIRST]


def test_the_run_of_a_job_that_another_caller_launches_during_the_wait_for_mlflow_is_used_and_stays_open(
    platform: Platform,
    cluster: FakeCluster,
    history: History,
    prepared: Prepared,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster.before = lambda operation, name: None
    of_other: list[str] = []

    def launched_by_other(platform: Platform, seconds: float) -> bool:
        keep_launch(str(tmp_path / "store"), prepared, ALLOCATION, earlier_terms=0)
        of_other.append(history.start_run(prepared, ALLOCATION))
        history.log_series(of_other[0], [Point(names.LOSS, 0.5, 100, 1e9)])
        labels = {RUN_LABEL: of_other[0]}
        name = f"{JOB_ID}-master"
        cluster.create(
            PodSpec(name=name, job=JOB_ID, role=Role.MASTER, command=("x",), size=PodSize(1, 1), labels=labels)
        )
        return True

    monkeypatch.setattr(launching, "wait_for_tracking", launched_by_other)
    monkeypatch.setattr(launching, "_direct_master", lambda *values: None)
    assert launch(platform, prepared, ALLOCATION).run_id == of_other[0]
    assert history.open_run(JOB_ID) == of_other[0]


def test_a_launch_that_the_cluster_refuses_leaves_no_open_run(
    history: History, launched: Callable[[], list[str]]
) -> None:
    launched()
    (record,) = history.job_records()
    assert history.open_run(JOB_ID) == "" and record.phase is Phase.FAILED
    assert record.reason == "the job could not be launched: the quota is exhausted"


def test_a_launch_whose_store_fails_once_its_pod_is_created_is_not_refused(
    platform: Platform, cluster: FakeCluster, history: History, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(prepared: Prepared) -> None:
        raise StoreError("the store is away")

    cluster.before = lambda operation, name: None
    monkeypatch.setattr(launching, "last_launch", fail)
    monkeypatch.setattr(launching, "_direct_master", lambda *values: None)
    assert launch(platform, prepared, ALLOCATION).run_id == history.open_run(JOB_ID)
    assert len(cluster.pods) == 1


def test_a_job_whose_master_has_ended_with_it_is_attached_to_without_waiting_for_the_master(
    platform: Platform, cluster: FakeCluster, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = ended_master(cluster)
    monkeypatch.setattr("elastrec.platform.jobs.watching.masters._START_SECONDS", 0.0)
    launched = launch(platform, prepared, ALLOCATION, owner="me")
    assert launched.run_id and list(cluster.pods) == [pod.name] and not cluster.deleted


def test_a_launch_that_attaches_reads_the_launch_of_the_job_once_and_is_refused_without_it(
    platform: Platform, cluster: FakeCluster, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = ended_master(cluster)
    reads: list[str] = []

    def read(store: Store, name: str, job_id: str) -> bytes | None:
        reads.append(job_id)
        if len(reads) > 1:
            raise StoreError("the store is away")
        return read_launch(store, name, job_id)

    monkeypatch.setattr(kept_launch, "read_launch", read)
    launch(platform, prepared, ALLOCATION)
    assert reads == [JOB_ID]
    with pytest.raises(StoreError, match="the store is away"):
        launch(platform, prepared, ALLOCATION)
    assert list(cluster.pods) == [pod.name] and not cluster.deleted


def test_a_launch_that_attaches_owns_the_job_before_it_waits_for_mlflow_and_does_not_take_it_again(
    platform: Platform, cluster: FakeCluster, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that is killed during the wait stops the job; a later owner is not replaced by the one that waited."""
    cluster.before = lambda operation, name: None
    cluster.create(PodSpec(name=f"{JOB_ID}-master", job=JOB_ID, role=Role.MASTER, command=("x",), size=PodSize(1, 1)))
    seen: list[object] = []

    class Master:
        def call(self, message: object, answer: type[Done], timeout_seconds: float) -> Done:
            seen.append(message)
            return Done()

        def close(self) -> None:
            pass

    def is_away(platform: Platform, seconds: float) -> bool:
        seen.append("MLflow is away")
        return False

    monkeypatch.setattr("elastrec.platform.jobs.starting.launching.wait_for_master", lambda *values: Master())
    monkeypatch.setattr("elastrec.platform.jobs.starting.launching.wait_for_tracking", is_away)
    launch(platform, prepared, ALLOCATION, owner="me")
    assert seen == [TakeOver(owner="me"), "MLflow is away"]


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
