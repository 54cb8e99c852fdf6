"""Output and refusals of `elastrec resume` before anything starts; tests/faults/test_resume.py tests the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from elastrec.checkpoints import open_store
from elastrec.platform import jobs
from elastrec.platform.cli.commands import resume as resume_command
from elastrec.platform.cli.job_course import Course
from elastrec.platform.clusters.local.config import LocalConfig
from elastrec.platform.jobs.starting.kept_launch import keep_launch
from elastrec.platform.specs.errors import DataError, SpecError
from elastrec.platform.specs.metrics import Phase, TrainingMetrics
from elastrec.platform.specs.text.loading import job_from_json, job_to_json
from tests.bad_input.caller import CheckHere
from tests.operators.steps import ALLOCATION, PREPARED
from tests.platform.jobs.starting.test_resuming import prepared
from tests.platform.master.fakes import FakeLauncher


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The default store of a platform, with the launch of job `clicks-1`; its cluster has no pod."""
    config = LocalConfig(address="", token="secret")
    platform = jobs.Platform(FakeLauncher(), config, "", str(tmp_path), tmp_path)  # type: ignore[arg-type]
    monkeypatch.setattr(jobs.Platform, "from_environment", staticmethod(lambda **_: platform))
    folder = str(tmp_path / "checkpoints")
    open_store(folder).create()
    keep_launch(folder, prepared(folder), ALLOCATION, 0)
    return folder


@pytest.fixture
def courses(monkeypatch: pytest.MonkeyPatch) -> list[Course]:
    """What would be trained, instead of training it."""
    found: list[Course] = []

    def note(platform: Any, course: Course, progress: Any) -> jobs.Result:
        found.append(course)
        return jobs.Result(
            run_id="r", model_uri="m", auc=0.7, normalized_entropy=0.9, samples_total=1, samples_trained=1,
            shards_total=1, shards_done=1, seconds=1.0, pods=[],
        )  # fmt: skip

    monkeypatch.setattr(resume_command, "train_and_publish", note)
    return found


def resumed(*arguments: str) -> str:
    shown = CliRunner().invoke(resume_command.resume, list(arguments), catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    return shown.output


def runs(monkeypatch: pytest.MonkeyPatch, phase: Phase) -> None:
    monkeypatch.setattr(
        "elastrec.platform.jobs.starting.resuming.observe",
        lambda platform, job_id: jobs.Observation(TrainingMetrics(job=job_id, phase=phase)),
    )


def test_resuming_a_running_job_waits_for_it_and_refuses_changes(
    store: str, courses: list[Course], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs(monkeypatch, Phase.TRAINING)
    said = resumed("clicks")
    assert "Job clicks-1 is running: waiting for it" in said
    (course,) = courses
    assert not course.is_resumed and course.prepared.training_manifest == PREPARED.training_manifest
    with pytest.raises(
        SpecError, match=r"--set: .* allowed: nothing, since the job runs; stop it first: elastrec stop"
    ):
        resumed("clicks-1", "--set", "spec.training.seed=2")
    with pytest.raises(SpecError, match="or change its pods: elastrec scale clicks-1"):
        resumed("clicks-1", "--set", "spec.resources.worker.count=2")
    assert len(courses) == 1


def test_a_running_job_gets_the_passwords_of_its_uris_from_the_caller_that_resumes_it(
    store: str, courses: list[Course], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs(monkeypatch, Phase.TRAINING)
    uri = "s3://key:password@clicks/log"
    data = {"path": uri, "evaluation_path": f"{uri}/later", "partitioning": "none", "sparse": [{"name": "user"}]}
    with_password = prepared(store, data=data)
    keep_launch(store, with_password, ALLOCATION, 0)
    with pytest.raises(SpecError, match=r"spec.data.path: 's3://key:\*\*\*@clicks/log' .*--set spec.data.path=URI"):
        resumed("clicks-1")
    with pytest.raises(SpecError, match="nothing, since the job runs"):
        resumed("clicks-1", "--set", "spec.data.path=s3://key:password@others/log")
    assert not courses
    resumed("clicks-1", "--set", f"spec.data.path={uri}")
    assert job_from_json(courses[0].prepared.job_json) == job_from_json(with_password.job_json)


def test_a_job_that_is_not_there_is_prepared_again_from_the_days_of_its_launch(
    store: str, courses: list[Course], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def prepare(platform: Any, job: Any, job_id: str, interval: Any) -> jobs.Prepared:
        asked.append((job, job_id, interval))
        return msgspec.structs.replace(PREPARED, job_json=job_to_json(job))

    monkeypatch.setattr("elastrec.platform.jobs.starting.resuming.prepare", prepare)
    said = resumed("clicks-1")
    assert "To continue this job: elastrec resume clicks-1\n" in said and "checking job, data and model" in said
    said = resumed("clicks-1", "--set", "spec.data.path=/mnt/clicks", "--keep")
    assert "elastrec resume clicks-1 --set spec.data.path=/mnt/clicks\n" in said
    (first, job_id, interval), (second, *_) = asked
    assert (job_id, interval) == ("clicks-1", PREPARED.interval)
    assert first.spec.data.path == "data" and second.spec.data.path == "/mnt/clicks"
    assert first.spec.checkpoint.store == store
    # Sizes are those of the launch, unless they are changed.
    resumed("clicks-1", "--set", "spec.resources.worker.count=7")
    assert [course.allocation for course in courses[:2]] == [ALLOCATION, ALLOCATION]
    assert courses[2].allocation is not None and courses[2].allocation.workers == 7
    assert [course.named_fields for course in courses[1:]] == [{"spec.data.path"}, {"spec.resources.worker.count"}]
    courses.pop()
    assert [course.keep for course in courses] == [False, True] and all(course.is_resumed for course in courses)
    assert courses[0].again == "run elastrec resume clicks-1"


def test_current_problems_are_reported_before_anything_starts(
    store: str, courses: list[Course], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastrec.platform.jobs.starting.preparation.ModelCheck", CheckHere)
    with pytest.raises(DataError, match="data"):
        resumed("clicks-1")
    with pytest.raises(SpecError, match=r"JOB: 'other' is not allowed; .*clicks-1 \(of clicks\)"):
        resumed("other")
    keep_launch(
        store,
        prepared(store, data={"path": "s3://key:password@clicks/log", "sparse": [{"name": "user"}]}),
        ALLOCATION,
        0,
    )
    with pytest.raises(SpecError, match=r"spec.data.path: 's3://key:\*\*\*@clicks/log' .*--set spec.data.path=URI"):
        resumed("clicks-1")
    assert not courses
