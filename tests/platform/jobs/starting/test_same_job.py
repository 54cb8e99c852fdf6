"""Only callers with the same job description take over the running job with that id."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from elastrec.platform.clusters.pods import PodPhase, PodSize, PodStatus
from elastrec.platform.jobs import Interval, Prepared
from elastrec.platform.jobs.starting.kept_launch import keep_launch, last_launch
from elastrec.platform.jobs.starting.same_job import JOB_LABEL, job_digest, refuse_other_training
from elastrec.platform.jobs.starting.same_job import refuse_other_job as refuse_other_than
from elastrec.platform.specs.errors import OtherJobError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.text.loading import job_to_json
from tests.platform.jobs.conftest import ALLOCATION
from tests.platform.master.fakes import job


def prepared(of: TrainingJob, **changes: object) -> Prepared:
    content = msgspec.json.decode(job_to_json(of))
    for path, value in changes.items():
        *sections, last = path.split("__")
        section = content["spec"]
        for name in sections:
            section = section[name]
        section[last] = value
    return Prepared(
        job_id="clicks-1",
        job_json=msgspec.json.encode(content).decode(),
        interval=Interval("", "", ""),
        training_manifest="training.json",
        evaluation_manifest="evaluation.json",
        training_rows=1,
        evaluation_rows=1,
    )


def master(of: Prepared | None) -> PodStatus:
    labels = {} if of is None else {JOB_LABEL: job_digest(of)}
    return PodStatus(
        name="clicks-1-master",
        uid="1",
        job="clicks-1",
        role=Role.MASTER,
        phase=PodPhase.RUNNING,
        size=PodSize(1.0, 2**30),
        labels=labels,
    )


def refuse_other_job(running: PodStatus, asked: Prepared) -> None:
    refuse_other_than(running, asked, last_launch(asked))


@pytest.fixture
def clicks(tmp_path: Path) -> TrainingJob:
    return job(checkpoint={"store": str(tmp_path / "store")})


def test_the_same_job_file_is_the_same_job_also_with_another_password(clicks: TrainingJob) -> None:
    refuse_other_job(master(prepared(clicks)), prepared(clicks))
    with_password = [prepared(clicks, data__path=f"s3://key:{word}@bucket/clicks") for word in ("old", "new")]
    refuse_other_job(master(with_password[0]), with_password[1])


def test_a_master_without_a_launch_record_is_accepted(clicks: TrainingJob) -> None:
    refuse_other_job(master(None), prepared(clicks))


def test_another_job_file_is_refused_and_every_field_that_differs_is_named(clicks: TrainingJob) -> None:
    runs, asked = prepared(clicks), prepared(clicks, training__batch_size=4096, training__epochs=7)
    keep_launch(clicks.spec.checkpoint.store, runs, ALLOCATION, 0)
    with pytest.raises(OtherJobError) as refused:
        refuse_other_job(master(runs), asked)
    message = str(refused.value)
    assert f"spec.training.batch_size is {clicks.spec.training.batch_size} there and 4096 here" in message
    assert f"spec.training.epochs is {clicks.spec.training.epochs} there and 7 here" in message
    assert "elastrec stop clicks-1" in message


def test_of_other_sizes_the_command_is_named_that_changes_the_job_that_runs(clicks: TrainingJob) -> None:
    runs = prepared(clicks)
    asked = prepared(clicks, resources__worker__count=7, resources__parameter_server__memory="3Gi")
    keep_launch(clicks.spec.checkpoint.store, runs, ALLOCATION, 0)
    with pytest.raises(OtherJobError, match=r"worker.count is 2 there and 7 here") as refused:
        refuse_other_job(master(runs), asked)
    assert str(refused.value).endswith("`elastrec scale clicks-1 --server-memory 3Gi --workers 7`")


def test_another_job_file_is_refused_also_where_its_store_does_not_know_the_launch(clicks: TrainingJob) -> None:
    with pytest.raises(OtherJobError, match="which fields differ is unknown"):
        refuse_other_job(master(prepared(clicks, training__epochs=7)), prepared(clicks))


DAYS = Interval("2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00", "2026-01-03T00:00:00+00:00")
NEXT_DAYS = Interval("2026-01-02T00:00:00+00:00", "2026-01-03T00:00:00+00:00", "2026-01-04T00:00:00+00:00")


def test_a_job_on_other_days_than_those_of_the_one_that_runs_or_was_trained_is_refused(clicks: TrainingJob) -> None:
    """Its model would be evaluated on rows for which the trainer has left no predictions."""
    runs, asked = (msgspec.structs.replace(prepared(clicks), interval=days) for days in (DAYS, NEXT_DAYS))
    refuse_other_job(master(runs), asked)
    refuse_other_training(asked)
    keep_launch(clicks.spec.checkpoint.store, runs, ALLOCATION, 0)
    refuse_other_job(master(runs), runs)
    refuse_other_training(runs)
    words = r"on other days: 2026-01-01T00:00:00\+00:00 to .* there and 2026-01-02T00:00:00\+00:00 to .* here"
    with pytest.raises(OtherJobError, match=f"job clicks-1 runs already, and {words}"):
        refuse_other_job(master(runs), asked)
    with pytest.raises(
        OtherJobError, match=f"job clicks-1 is trained already, and {words}.* `elastrec resume clicks-1`"
    ):
        refuse_other_training(asked)


def test_a_job_file_that_was_changed_after_the_training_does_not_publish_its_model(clicks: TrainingJob) -> None:
    keep_launch(clicks.spec.checkpoint.store, prepared(clicks), ALLOCATION, 0)
    with pytest.raises(
        OtherJobError, match=r"is trained already, and with another job file: .*epochs is 1 there and 7 "
    ):
        refuse_other_training(prepared(clicks, training__epochs=7))
