"""The form: what it offers, what it refuses, and which job and days it means."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from airflow.sdk.exceptions import ParamValidationError

from elastrec.operators.params import read_interval, read_job, training_params
from elastrec.operators.services import default_dags_folder
from elastrec.platform.specs.errors import SpecError

JOBS = default_dags_folder() / "jobs"
INLINE = {
    "apiVersion": "elastrec.io/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"name": "tiny"},
    "spec": {
        "model": {"architecture": "dlrm"},
        "data": {"path": "clicks", "sparse": [{"name": "C1"}]},
    },
}


def test_the_form_offers_every_ready_job_file() -> None:
    field = training_params(JOBS, "demo.yaml")["job_file"]
    assert set(field.schema["examples"]) == {file.name for file in JOBS.glob("*.yaml")}
    assert field.resolve("/elsewhere/mine.yaml") == "/elsewhere/mine.yaml"


def test_the_empty_form_is_valid() -> None:
    for field in training_params(JOBS, "demo.yaml").values():
        field.resolve()


@pytest.mark.parametrize("value", [None, {}, INLINE])
def test_the_inline_job_may_be_empty_or_whole(value: object) -> None:
    assert training_params(JOBS, "demo.yaml")["job"].resolve(value) == value


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("job", {**INLINE, "spec": {**INLINE["spec"], "modle": {}}}, "'modle' was unexpected"),
        ("job", {"kind": "CronJob"}, "'TrainingJob' was expected"),
        ("job_file", "", "too short|non-empty"),
        ("interval_start", "yesterday", "is not a 'date-time'"),
        ("overrides", {"batch_size": 3}, "does not match"),
        ("overrides", [1], "is not of type 'object'"),
    ],
)
def test_the_form_refuses_a_wrong_field_in_words(field: str, value: object, said: str) -> None:
    with pytest.raises(ParamValidationError, match=said):
        training_params(JOBS, "demo.yaml")[field].resolve(value)


def test_a_job_file_is_read_with_its_overrides() -> None:
    job = read_job(JOBS, "demo.yaml", None, {"spec.training.batch_size": 64}, "nothing")
    assert (job.spec.training.batch_size, job.spec.continual.start_from) == (64, "nothing")


def test_an_inline_job_goes_before_the_job_file() -> None:
    assert read_job(JOBS, "demo.yaml", INLINE, None, None).metadata.name == "tiny"


def test_all_problems_of_a_job_are_named_at_once() -> None:
    with pytest.raises(SpecError) as refused:
        read_job(JOBS, "demo.yaml", None, {"spec.training.batch_size": 0, "spec.model.architecture": "gpt"}, None)
    assert {problem.path for problem in refused.value.problems} >= {"spec.training.batch_size"}
    assert "architecture" in str(refused.value)


def test_no_job_at_all_is_refused() -> None:
    with pytest.raises(SpecError, match="job_file: empty"):
        read_job(JOBS, None, {}, None, None)


@pytest.mark.parametrize("file", sorted(JOBS.glob("*.yaml")), ids=lambda file: file.name)
def test_every_ready_job_file_is_valid(file: Path) -> None:
    assert read_job(JOBS, file.name, None, None, None).metadata.name


def test_a_scheduled_run_evaluates_on_the_newest_complete_day_and_trains_on_the_day_before() -> None:
    interval = read_interval(None, None, datetime(2026, 1, 3, 2, tzinfo=UTC), by_hand=False)
    assert interval is not None
    assert [moment.day for moment in interval.moments()] == [1, 2, 3]


def test_a_run_by_hand_without_days_takes_what_the_data_holds() -> None:
    assert read_interval(None, None, datetime(2026, 1, 3, 2, tzinfo=UTC), by_hand=True) is None


def test_given_days_are_taken_as_they_are_and_the_next_is_evaluated_on() -> None:
    interval = read_interval("2026-01-01T00:00:00+00:00", "2026-01-04", None, by_hand=True)
    assert interval is not None
    assert [moment.day for moment in interval.moments()] == [1, 4, 5]


@pytest.mark.parametrize(("start", "end"), [(None, "2026-01-02"), ("2026-01-02", "2026-01-01"), ("soon", None)])
def test_impossible_days_are_refused(start: str | None, end: str | None) -> None:
    with pytest.raises(SpecError):
        read_interval(start, end, None, by_hand=True)
