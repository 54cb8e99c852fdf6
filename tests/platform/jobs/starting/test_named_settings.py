"""A launch with settings for a job that runs, on a real master: it never ignores them silently."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from elastrec.platform.cli import job_course
from elastrec.platform.cli.job_course import Course
from elastrec.platform.clusters.local import LocalCluster
from elastrec.platform.jobs import Launched, Platform, Prepared, launch, stop
from elastrec.platform.jobs.ordering import order_workers
from elastrec.platform.jobs.scaling.asking import ask_for_shape
from elastrec.platform.jobs.starting.kept_launch import keep_launch
from elastrec.platform.jobs.watching.masters import live_master
from elastrec.platform.specs.errors import OtherJobError
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.shape import PlacesChange
from elastrec.platform.specs.text.loading import job_from_json, job_to_json
from elastrec.platform.transport.messages.job import Done
from elastrec.platform.transport.messages.observer import StopJob, WorkerOrder
from tests.operators.steps import PREPARED
from tests.platform.jobs.conftest import ALLOCATION, JOB
from tests.platform.master.fakes import job as training_job

pytestmark = pytest.mark.services

WORKERS, CORES, MEMORY = (
    "spec.resources.worker.count", "spec.resources.worker.cores", "spec.resources.parameter_server.memory"
)  # fmt: skip


RATES = ("spec.optimizers.rows.learning_rate", "spec.optimizers.dense.learning_rate")


@pytest.fixture
def platform(platform_with_master: Platform, small_cluster: LocalCluster) -> Platform:
    """Its job was launched with one worker of half a core, and scaled to two of a quarter. MLflow does not answer."""
    change = {Role.WORKER: PlacesChange(count=2, cores=0.25)}
    assert ask_for_shape(platform_with_master, JOB, change).accepted
    return Platform.connect(small_cluster.config, "http://127.0.0.1:9", platform_with_master.work_uri)


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    """The job as it was launched. Its launch does not wait for MLflow."""
    resources = {"master": {"cores": 0.25, "memory": "256Mi"}, "virtual_buckets": 64}
    resources |= {role: {"count": 1, "cores": 0.5, "memory": "400Mi"} for role in ("worker", "parameter_server")}
    job = training_job(
        resources=resources,
        checkpoint={"store": str(tmp_path / "store")},
        history={"launch_wait": 0.01},
        optimizers={"rows": {"kind": "adagrad", "learning_rate": 0.2}},
    )
    return msgspec.structs.replace(PREPARED, job_id=JOB, job_json=job_to_json(job))


def launched_again(platform: Platform, prepared: Prepared, *named: str) -> Launched:
    return launch(platform, prepared, ALLOCATION, "another call", named_fields=named)


def has_owner(platform: Platform, owner: str) -> bool:
    """Whether the running job may be stopped by this caller; it is not stopped."""
    stranger = "a stranger"
    with live_master(platform, JOB) as master:
        assert master is not None
        answer = master.call(StopJob(reason="not this one", owner=stranger), Done, timeout_seconds=5)
    return not answer.accepted and answer.reason == f"the job was taken over by {owner}"


def test_a_size_that_the_running_job_does_not_have_is_refused_with_the_command_that_changes_it(
    platform: Platform, prepared: Prepared
) -> None:
    launched_again(platform, prepared)
    with pytest.raises(OtherJobError) as refused:
        launch(platform, prepared, ALLOCATION, "a third call", named_fields=[WORKERS, CORES, MEMORY])
    assert str(refused.value) == (
        "job clicks-1 runs already, and --set does not change a running job: spec.resources.worker.cores is 0.25 there "
        "and 0.5 here; spec.resources.worker.count is 2 there and 1 here. To change it: `elastrec scale clicks-1 "
        "--workers 1 --worker-cores 0.5`; to wait for it as it is: `elastrec resume clicks-1`"
    )
    assert has_owner(platform, "another call"), "the one that runs is left alone"


def test_a_size_that_the_running_job_has_attaches_to_it(platform: Platform, prepared: Prepared) -> None:
    assert launched_again(platform, prepared, MEMORY, "spec.data.path").changed_since == ""


def test_a_retry_of_a_task_which_names_no_field_attaches_to_a_job_that_was_scaled(
    platform: Platform, prepared: Prepared
) -> None:
    assert launched_again(platform, prepared).changed_since == ""


def test_the_command_of_the_launch_attaches_to_a_job_that_was_scaled_and_says_so(
    platform: Platform, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`elastrec run` prints it, to be called again if it was killed."""
    store = job_from_json(prepared.job_json).spec.checkpoint.store
    keep_launch(store, prepared, ALLOCATION, 0, [WORKERS, MEMORY])
    said: list[str] = []
    progress: Any = SimpleNamespace(say=said.append)
    monkeypatch.setattr(job_course, "_wait", lambda platform, prepared, launched, progress: launched)
    course = Course(prepared, "", keep=False, allocation=ALLOCATION, named_fields=frozenset([WORKERS, MEMORY]))
    job_course._trained(platform, course, "another call", progress)
    assert said[0] == (
        "Job clicks-1 has other settings by now than its launch named: spec.resources.worker.count is 2 there and 1 "
        "here. To change it: `elastrec scale clicks-1 --workers 1`"
    )
    with pytest.raises(OtherJobError, match=r"worker.cores is 0.25 there and 0.5 here"):
        launched_again(platform, prepared, WORKERS, CORES)


def test_an_order_for_all_workers_is_not_replaced_by_a_launch(platform: Platform, prepared: Prepared) -> None:
    order = WorkerOrder(batch_size=5, learning_rate_scale=0.5)
    assert not order_workers(platform, JOB, order).reason
    with pytest.raises(OtherJobError) as refused:
        launched_again(platform, prepared, *RATES, "spec.training.batch_size", WORKERS, "spec.training.epochs")
    message = str(refused.value)
    for words in (
        "spec.training.batch_size is 5 there and 10 here",
        "spec.optimizers.rows.learning_rate is 0.1 there and 0.2 here",
        "`elastrec scale clicks-1 --workers 1` and `elastrec order clicks-1 --batch-size 10 --learning-rate-scale 1`;",
    ):
        assert words in message, message
    assert not order_workers(platform, JOB, WorkerOrder(resets=True)).reason
    assert launched_again(platform, prepared, *RATES, "spec.training.batch_size").changed_since == ""


def test_a_job_that_has_ended_has_no_sizes(platform: Platform, prepared: Prepared) -> None:
    with live_master(platform, JOB) as master:
        assert master is not None and master.call(StopJob(reason="enough"), Done, timeout_seconds=5).accepted
    assert launched_again(platform, prepared, WORKERS).changed_since == ""
    stop(platform, JOB, "seen")
