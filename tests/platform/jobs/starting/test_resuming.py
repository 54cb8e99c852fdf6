"""Resumed jobs: the launch in their store, the search by name, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import structlog

from elastrec.checkpoints import (
    PartWriter,
    answer,
    commit_record,
    conclude,
    new_record_uri,
    open_store,
    read_launch,
    take_term,
)
from elastrec.platform.clusters.local.config import LocalConfig
from elastrec.platform.history.records import TAG_AIRFLOW_LOG, TAG_AIRFLOW_URL
from elastrec.platform.jobs import (
    Allocation,
    Interval,
    KeptLaunch,
    Platform,
    Prepared,
    days_to_continue,
    launch,
    named_fields,
    remove_unsuccessful,
    resumable,
)
from elastrec.platform.jobs.starting import launching
from elastrec.platform.jobs.starting.kept_launch import keep_launch, kept_launch
from elastrec.platform.jobs.starting.launching import launch_request
from elastrec.platform.master.machine.plan import JobPlan
from elastrec.platform.master.pods.launch import LaunchRequest
from elastrec.platform.master.reporting.unsent_metrics import write_result
from elastrec.platform.master.service.resumption import (
    ATTRIBUTE,
    KeptOrders,
    KeptShape,
    Numbering,
    own_records,
    resumed_from,
)
from elastrec.platform.specs.errors import CheckpointError, ClusterError, SpecError
from elastrec.platform.specs.metrics import Phase, Role, TrainingMetrics
from elastrec.platform.specs.shape import Shape
from elastrec.platform.specs.splits import Positions, StreamPositions
from elastrec.platform.specs.text.loading import job_from_json, job_to_json
from elastrec.platform.transport.messages.directive import PodOrders
from tests.operators.steps import ALLOCATION, PREPARED
from tests.platform.master.fakes import FakeCluster, FakeLauncher
from tests.platform.master.fakes import job as training_job
from tests.shapes import change


@pytest.fixture
def store(tmp_path: Path) -> str:
    folder = str(tmp_path / "store")
    open_store(folder).create()
    return folder


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def platform(cluster: FakeCluster, tmp_path: Path) -> Platform:
    """MLflow does not answer; the cluster creates pods and runs nothing in them."""
    config = LocalConfig(address="", token="token-of-the-cluster")
    tracking = "http://person:password-of-mlflow@127.0.0.1:9"
    return Platform(FakeLauncher(cluster), config, tracking, str(tmp_path / "work"), tmp_path)  # type: ignore[arg-type]


def prepared(store: str, job_id: str = "clicks-1", **spec: Any) -> Prepared:
    sections = {"checkpoint": {"store": store}, "history": {"launch_wait": 0.01}} | spec
    return msgspec.structs.replace(PREPARED, job_id=job_id, job_json=job_to_json(training_job(**sections)))


def kept(store: str, job_id: str, earlier_terms: int = 0) -> None:
    keep_launch(store, prepared(store, job_id), ALLOCATION, earlier_terms)


def term_taken(store: str, job_id: str, holder: str = "h") -> None:
    take_term(store, "clicks", job_id, holder=holder, address="127.0.0.1:1", base=lambda: "")


def saved(
    request: LaunchRequest,
    step: int,
    kind: str = "periodic",
    term: int = 1,
    base: str = "",
    reached: Shape | None = None,
    **attributes: str,
) -> str:
    """A complete record of a term of the job, with all buckets or the second changes since its base; returns its
    URI."""
    uri = new_record_uri(request.store, request.training_job.metadata.name, request.job_id, step)
    first, last = (2, 2) if base else (0, 1)
    groups = [answer(request.training_job.spec.data.tables, range(64), first=first, last=last)]
    writer = PartWriter(uri, "clicks-1-ps-0", groups=groups, dense_ranges=[(0, 4)], generation=0)
    writer.write_dense("w", (4,), 0, {"value": np.zeros(4, np.float32)})
    commit_record(
        uri, [writer.finish()], Positions({"training": StreamPositions(1, [])}).encode(),
        job=request.training_job, job_id=request.job_id,
        kind=kind, step=step, generation=0, term=term, base=base,
        attributes={
            ATTRIBUTE: msgspec.json.encode(Numbering.of(request)).decode(), **KeptShape.attribute(request, reached),
            **attributes,
        },
    )  # fmt: skip
    return uri


def test_a_launch_is_written_to_the_store_without_secrets_before_there_is_a_pod(
    platform: Platform, cluster: FakeCluster, store: str
) -> None:
    secret = {"path": "s3://key:password-of-data@clicks/log", "sparse": [{"name": "user"}]}
    records = [f"webhdfs://user:password-of-store@host/{number}" for number in range(3)]
    job = msgspec.structs.replace(
        prepared(store, data=secret), start_record=records[0], older_start_records=records[1:], page="http://mlflow/job"
    )
    seen: list[bytes | None] = []

    def refuse(operation: str, name: str) -> None:
        seen.append(read_launch(store, "clicks", "clicks-1"))
        raise ClusterError("the quota is exhausted")

    cluster.before = refuse
    with pytest.raises(ClusterError, match="quota"):
        launch(platform, job, ALLOCATION, named_fields=["spec.resources.worker.count"])
    (text,) = seen
    assert text is not None and b"password-of" not in text and b"token-of" not in text
    found = msgspec.json.decode(text, type=KeptLaunch)
    assert found.job_id == "clicks-1" and found.allocation == ALLOCATION and found.prepared.interval == job.interval
    assert found.named_fields == ["spec.resources.worker.count"]
    assert (
        found.prepared.training_digest == job.training_digest and "s3://key:***@clicks/log" in found.prepared.job_json
    )


def test_a_launch_that_continues_says_the_position_and_not_how_many_samples_were_ever_trained(
    platform: Platform, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "_direct_master", lambda *values: None)
    job = prepared(store, training={"batch_size": 2, "batches_per_shard": 1, "epochs": 2})
    term_taken(store, "clicks-1")
    uri = saved(launch_request(job, ALLOCATION), 500)
    launched = launch(platform, job, ALLOCATION)
    assert (launched.goes_on_from, launched.goes_on_words) == (uri, f"{uri} at 2 of 20 samples")


def test_a_later_launch_takes_the_place_of_the_earlier_one(store: str) -> None:
    kept(store, "clicks-1")
    kept(store, "clicks-1", earlier_terms=3)
    assert kept_launch(store, "clicks-1").earlier_terms == 3


def test_a_name_finds_the_latest_job_and_an_id_its_job(
    platform: Platform, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job_id in ("clicks-b", "clicks-c", "clicks-a"):
        kept(store, job_id)
    assert resumable(platform, "clicks-c", store).job_id == "clicks-c"
    assert resumable(platform, "clicks", store).job_id == "clicks-a"


def test_a_resumed_job_keeps_its_dag_run_and_not_the_log_of_the_task_that_launched_it(
    platform: Platform, store: str
) -> None:
    tags = {TAG_AIRFLOW_URL: "http://airflow/dags/d/runs/r", TAG_AIRFLOW_LOG: "http://airflow/dags/d/runs/r/tasks/t"}
    keep_launch(store, msgspec.structs.replace(prepared(store), run_tags=tags), ALLOCATION, 0)
    run_tags = resumable(platform, "clicks-1", store).prepared.run_tags
    assert run_tags == {TAG_AIRFLOW_URL: "http://airflow/dags/d/runs/r", TAG_AIRFLOW_LOG: ""}


def test_an_unknown_job_is_answered_with_those_that_are_there(platform: Platform, store: str) -> None:
    with pytest.raises(SpecError, match=r"a job of file:.*, by its id or its name \(there are none\); --store names"):
        resumable(platform, "clicks", store)
    kept(store, "clicks-b")
    with pytest.raises(SpecError, match=r"JOB: 'clicks-x' is not allowed; .*: clicks-b \(of clicks\); --store"):
        resumable(platform, "clicks-x", store)


def test_a_job_whose_model_is_published_has_nothing_to_resume_until_it_is_launched_again(
    platform: Platform, store: str
) -> None:
    kept(store, "clicks-1")
    term_taken(store, "clicks-1")
    assert resumable(platform, "clicks-1", store).job_id == "clicks-1"
    conclude(store, "clicks", "clicks-1")
    with pytest.raises(SpecError, match="this one has succeeded and its model is published"):
        resumable(platform, "clicks", store)
    # Its next run has not even got a term.
    kept(store, "clicks-1", earlier_terms=1)
    assert resumable(platform, "clicks-1", store).earlier_terms == 1


def test_a_launch_of_another_format_is_refused_with_the_way_on(store: str) -> None:
    kept(store, "clicks-1")
    file = Path(store) / "clicks" / "terms" / "clicks-1" / "launch.json"
    file.write_text(file.read_text().replace('"format_version": 1', '"format_version": 2'))
    with pytest.raises(CheckpointError, match=r"has format 2; this version .* reads 1 alone; launch the job with"):
        kept_launch(store, "clicks-1")
    file.write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        kept_launch(store, "clicks-1")


def test_records_of_other_rows_are_refused_before_there_is_a_pod(
    platform: Platform, cluster: FakeCluster, store: str
) -> None:
    saved(launch_request(prepared(store), ALLOCATION), 20)
    other = prepared(store, training={"batch_size": 10, "batches_per_shard": 2, "seed": 9})
    with pytest.raises(SpecError, match=r"spec.training.seed: 9 is not allowed; .*spec.continual.resume: never"):
        launch(platform, other, ALLOCATION)
    assert cluster.pods == {} and read_launch(store, "clicks", "clicks-1") is None


@pytest.mark.parametrize("seed", [0, 9])
def test_a_run_that_was_trained_to_its_end_is_continued_on_the_same_rows_alone(store: str, seed: int) -> None:
    """An Airflow run that is cleared as a whole prepares again: its files may be other ones by then."""
    first = launch_request(prepared(store), ALLOCATION)
    assert first.training_job.spec.training.seed == 0
    term_taken(store, "clicks-1")
    saved(first, 10)
    saved(first, 20, "final")
    again = prepared(store, training={"batch_size": 10, "batches_per_shard": 2, "seed": seed})
    found = launch_request(again, ALLOCATION)
    assert found.earlier_terms == (1 if seed else 0)
    assert [record.manifest.step for record in own_records(found, 3)] == ([] if seed else [20, 10])


def test_a_resumed_job_can_go_back_to_the_records_on_which_its_newest_ones_build(store: str) -> None:
    request = launch_request(prepared(store, checkpoint={"store": store, "keep": 1}), ALLOCATION)
    term_taken(store, "clicks-1")
    saved(request, 5)
    full = saved(request, 10)
    delta = saved(request, 20, base=full)
    resumed = resumed_from(request, JobPlan.of(request))
    assert resumed is not None
    assert [(record.uri, record.base) for record in resumed.records] == [(full, ""), (delta, full)]
    assert [record.uri for record in own_records(request, 1)] == [delta]


def test_a_job_continues_with_its_pods_whatever_start_up_sizes_similar_jobs_lead_to(store: str) -> None:
    def continued(allocation: Allocation, **sections: Any) -> Shape | None:
        request = launch_request(prepared(store, **sections), allocation)
        found = resumed_from(request, JobPlan.of(request))
        assert found is not None
        return found.shape

    began = Shape.of(training_job().spec.resources)
    reached = began.changed(change(parameter_server_memory_bytes=7 * 2**30, workers=5))
    term_taken(store, "clicks-1")
    saved(launch_request(prepared(store), ALLOCATION), 10, reached=reached)
    others = msgspec.structs.replace(ALLOCATION, workers=9, parameter_server_memory_bytes=2**30)
    assert continued(ALLOCATION) == continued(others) == reached
    fewer = training_job().spec.resources.model_dump(mode="json") | {"worker": {"count": 4}}
    named = Shape.of(training_job(resources=fewer).spec.resources)
    assert named.change_from(began) == change(workers=4)
    # The number that differs is that with which the launch starts; servers have to hold the rows of the record.
    assert continued(msgspec.structs.replace(others, workers=4), resources=fewer) == reached.changed(change(workers=4))


def test_sizes_that_the_caller_names_replace_those_of_a_scaled_job_also_with_the_numbers_of_its_launch(
    store: str,
) -> None:
    began = Shape.of(training_job().spec.resources)
    reached = began.changed(change(parameter_server_memory_bytes=7 * 2**30, workers=5, worker_cores=3.0))
    term_taken(store, "clicks-1")
    saved(launch_request(prepared(store), ALLOCATION), 10, reached=reached)

    def continued(request: LaunchRequest) -> Shape | None:
        found = resumed_from(request, JobPlan.of(request))
        assert found is not None
        return found.shape

    workers, servers = began[Role.WORKER].count, began[Role.PARAMETER_SERVER].size.memory_bytes
    count = named_fields({"spec.resources.worker.count": workers})
    others = msgspec.structs.replace(ALLOCATION, workers=9)
    named = launch_request(prepared(store), others, named_fields=count)
    assert continued(named) == reached.changed(change(workers=workers))
    memory = named_fields({"spec.resources.parameter_server": {"memory": servers}})
    of_servers = launch_request(prepared(store), ALLOCATION, named_fields=memory)
    assert continued(of_servers) == reached.changed(change(parameter_server_memory_bytes=servers))
    of_data = launch_request(prepared(store), ALLOCATION, named_fields=named_fields({"spec.data.path": "/mnt/clicks"}))
    assert continued(of_data) == reached
    # The resumed job was scaled again before its master lost the journal.
    term_taken(store, "clicks-1", "the resumed one")
    later = reached.changed(change(workers=7))
    saved(named, 20, term=2, reached=later)
    assert continued(named) == later


def test_a_maximum_that_the_caller_names_limits_the_workers_that_a_person_had_exceeded(store: str) -> None:
    reached = Shape.of(training_job().spec.resources).changed(change(workers=5))
    job = prepared(store, scaling={"maximum_workers": 4})
    term_taken(store, "clicks-1")
    saved(launch_request(job, ALLOCATION), 10, reached=reached)
    request = launch_request(job, ALLOCATION, named_fields=["spec.scaling.maximum_workers"])
    found = resumed_from(request, JobPlan.of(request))
    assert found is not None and found.shape == reached.changed(change(workers=4))


@pytest.mark.parametrize(
    ("before", "now", "workers"), [(64, 3, 3), (64, 64, 5), (4, 4, 5), (4, 64, 5), (64, 5, 5)], ids=str
)
def test_a_lowered_maximum_limits_the_workers_of_a_continued_job(
    store: str, before: int, now: int, workers: int
) -> None:
    """A maximum that did not change was exceeded by a person, who may exceed it."""
    reached = Shape.of(training_job().spec.resources).changed(change(workers=5))
    term_taken(store, "clicks-1")
    saved(launch_request(prepared(store, scaling={"maximum_workers": before}), ALLOCATION), 10, reached=reached)
    request = launch_request(prepared(store, scaling={"maximum_workers": now}), ALLOCATION)
    found = resumed_from(request, JobPlan.of(request))
    assert found is not None and found.shape == reached.changed(change(workers=workers))


@pytest.mark.parametrize("attribute", ["shape", "orders"])
def test_a_record_whose_sizes_or_orders_are_of_another_version_is_used_and_says_so(store: str, attribute: str) -> None:
    """Its rows and positions are intact: the record before it would repeat training."""
    request = launch_request(prepared(store), ALLOCATION)
    term_taken(store, "clicks-1")
    saved(request, 10)
    newest = saved(request, 20, **{attribute: '{"launched": 7}'})
    with structlog.testing.capture_logs() as lines:
        found = resumed_from(request, JobPlan.of(request))
    assert found is not None and found.records[-1].uri == newest
    assert found.shape is None and found.orders is None
    assert [line["attribute"] for line in lines if line["event"] == "record_attribute_ignored"] == [attribute]


HALF = PodOrders(version=0, batch_size=5, learning_rate_scale=0.5)


@pytest.mark.parametrize(
    ("spec", "orders"),
    [
        ({}, HALF),
        ({"training": {"batch_size": 20, "batches_per_shard": 1}}, PodOrders(version=0, learning_rate_scale=0.5)),
        ({"optimizers": {"dense": {"learning_rate": 0.5}}}, PodOrders(version=0, batch_size=5)),
    ],
    ids=["the same", "another batch size", "another learning rate"],
)
def test_orders_for_all_workers_outlive_the_journal_unless_the_launch_names_other_values(
    store: str, spec: dict[str, Any], orders: PodOrders
) -> None:
    first = launch_request(prepared(store), ALLOCATION)
    term_taken(store, "clicks-1")
    saved(first, 10, **KeptOrders.attribute(first, HALF))
    again = launch_request(prepared(store, **spec), ALLOCATION)
    found = resumed_from(again, JobPlan.of(again))
    assert found is not None and found.orders == orders


@pytest.mark.parametrize(
    ("field", "orders"),
    [
        ("spec.training.batch_size", PodOrders(version=0, learning_rate_scale=0.5)),
        ("spec.optimizers.rows.learning_rate", PodOrders(version=0, batch_size=5)),
        ("spec.data.path", HALF),
    ],
)
def test_values_that_the_caller_names_replace_those_that_were_ordered(
    store: str, field: str, orders: PodOrders
) -> None:
    first = launch_request(prepared(store), ALLOCATION)
    term_taken(store, "clicks-1")
    saved(first, 10, **KeptOrders.attribute(first, HALF))
    again = launch_request(prepared(store), ALLOCATION, named_fields=[field])
    found = resumed_from(again, JobPlan.of(again))
    assert found is not None and found.orders == orders


def test_runs_that_were_over_at_the_launch_stay_over_when_it_is_resumed(store: str) -> None:
    never = prepared(store, continual={"resume": "never"})
    term_taken(store, "clicks-1")
    assert launch_request(never, ALLOCATION).earlier_terms == 1
    term_taken(store, "clicks-1", "the second run")
    # By the job file alone, what the second run has left would be forgotten, too.
    assert launch_request(never, ALLOCATION).earlier_terms == 2
    assert launch_request(never, ALLOCATION, earlier_terms=1).earlier_terms == 1


def days(platform: Platform, job: Prepared) -> Interval | None:
    return days_to_continue(platform, job_from_json(job.job_json), job.job_id)


def test_a_job_that_has_begun_is_continued_on_its_days_until_its_model_is_published(
    platform: Platform, store: str
) -> None:
    """`elastrec run` with the same key may be called again when the log has another day."""
    job = prepared(store)
    assert days(platform, job) is None
    kept(store, "clicks-1")
    assert days(platform, job) is None
    term_taken(store, "clicks-1")
    assert days(platform, job) == PREPARED.interval
    conclude(store, "clicks", "clicks-1")
    assert days(platform, job) is None
    kept(store, "clicks-1", earlier_terms=1)
    assert days(platform, job) is None
    term_taken(store, "clicks-1", "the second run")
    assert days(platform, job) == PREPARED.interval


def test_a_job_that_begins_anew_keeps_its_days_only_if_it_runs_or_is_trained(
    platform: Platform, cluster: FakeCluster, store: str
) -> None:
    from elastrec.platform.clusters.pods import PodSize, PodSpec

    job = prepared(store, continual={"resume": "never"})
    kept(store, "clicks-1")
    term_taken(store, "clicks-1")
    assert days(platform, job) is None
    write_result(store, "clicks", "clicks-1", TrainingMetrics(job="clicks-1", phase=Phase.FAILED))
    assert days(platform, job) is None
    cluster.create(
        PodSpec(name="clicks-1-master", job="clicks-1", role=Role.MASTER, command=("x",), size=PodSize(1, 1))
    )
    assert days(platform, job) == PREPARED.interval
    cluster.plane.pods.clear()
    write_result(store, "clicks", "clicks-1", TrainingMetrics(job="clicks-1", phase=Phase.SUCCEEDED))
    assert days(platform, job) == PREPARED.interval


def test_the_pods_of_a_failed_job_are_removed_and_those_of_a_running_job_stay(
    platform: Platform, cluster: FakeCluster, store: str
) -> None:
    from elastrec.platform.clusters.pods import PodSize, PodSpec

    assert not remove_unsuccessful(platform, "clicks-1")
    for name, role in (("clicks-1-master", Role.MASTER), ("clicks-1-ps-0", Role.PARAMETER_SERVER)):
        cluster.create(PodSpec(name=name, job="clicks-1", role=role, command=("x",), size=PodSize(1, 1)))
    cluster.plane.pods = {
        uid: msgspec.structs.replace(pod, address="", job="clicks-1", role=role)
        for (uid, pod), role in zip(cluster.plane.pods.items(), (Role.MASTER, Role.PARAMETER_SERVER), strict=True)
    }
    # Its master does not answer at the moment, which is no failure.
    assert remove_unsuccessful(platform, "clicks-1") and len(cluster.pods) == 2
    cluster.end("clicks-1-master")
    assert not remove_unsuccessful(platform, "clicks-1")
    assert cluster.pods == {}
