"""The trigger form: its options, its checks, and the resulting job and days."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec
import pendulum
import pytest
from airflow.sdk.exceptions import ParamValidationError
from airflow.timetables.base import TimeRestriction
from airflow.timetables.trigger import CronTriggerTimetable

from elastrec.operators import settings
from elastrec.operators.params import read_interval, read_job, refuse_unknown, scheduled_moment, training_params
from elastrec.platform.specs.errors import SpecError
from tools.stack.services import default_dags_folder

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
    field = training_params(JOBS)["job_file"]
    assert set(field.schema["examples"]) == {file.name for file in JOBS.glob("*.yaml")}
    assert field.resolve("/elsewhere/mine.yaml") == "/elsewhere/mine.yaml"


def test_the_form_fits_into_the_messages_of_airflows_processes() -> None:
    # msgpack has no integers from 2**64 on: one in the schema of the form, and Airflow silently drops the DAG.
    form = {name: param.schema for name, param in training_params(JOBS).items()}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(form)) == form


def test_the_empty_form_is_valid() -> None:
    for field in training_params(JOBS).values():
        field.resolve()


@pytest.mark.parametrize("value", [None, {}, INLINE])
def test_the_inline_job_may_be_empty_or_whole(value: object) -> None:
    assert training_params(JOBS)["job"].resolve(value) == value


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("job", {**INLINE, "sepc": {}}, "'sepc' was unexpected"),
        ("job", {"metadata": "tiny"}, "'tiny' is not of type 'object'"),
        ("job_file", "", "too short|non-empty"),
        ("interval_start", "yesterday", "is not a 'date-time'"),
        ("overrides", {"batch_size": 3}, "does not match"),
        ("overrides", [1], "is not of type 'object'"),
    ],
)
def test_the_form_refuses_a_wrong_field_in_words(field: str, value: object, said: str) -> None:
    with pytest.raises(ParamValidationError, match=said) as refused:
        training_params(JOBS)[field].resolve(value)
    assert len(str(refused.value)) < 1000, (
        "Airflow shows the field's schema with it: a whole job's would hide the problem"
    )


def test_a_job_file_is_read_with_its_overrides() -> None:
    job = read_job(JOBS, "demo.yaml", None, {"spec.training.batch_size": 64}, "nothing")
    assert (job.spec.training.batch_size, job.spec.continual.start_from) == (64, "nothing")


def test_an_inline_job_goes_before_the_job_file() -> None:
    assert read_job(JOBS, "demo.yaml", INLINE, None, None).metadata.name == "tiny"


def test_all_problems_of_an_inline_job_are_reported_together() -> None:
    wrong = {**INLINE, "kind": "CronJob", "spec": {**INLINE["spec"], "modle": {}}}
    with pytest.raises(SpecError) as refused:
        read_job(JOBS, None, wrong, None, None)
    assert {problem.path for problem in refused.value.problems} >= {"kind", "spec.modle"}


def test_all_problems_of_a_job_file_are_reported_together() -> None:
    with pytest.raises(SpecError) as refused:
        read_job(JOBS, "demo.yaml", None, {"spec.training.batch_size": 0, "spec.model.architecture": "gpt"}, None)
    assert {problem.path for problem in refused.value.problems} >= {"spec.training.batch_size"}
    assert "architecture" in str(refused.value)


def test_no_job_at_all_is_refused() -> None:
    with pytest.raises(SpecError, match=r"job_file: empty.*elastrec_job_file .*AIRFLOW_VAR_ELASTREC_JOB_FILE"):
        read_job(JOBS, None, {}, None, None)


@pytest.mark.parametrize("file", sorted(JOBS.glob("*.yaml")), ids=lambda file: file.name)
def test_every_ready_job_file_is_valid(file: Path) -> None:
    assert read_job(JOBS, file.name, None, None, None).metadata.name


def at(day: int, hour: int = 2) -> datetime:
    return datetime(2026, 1, day, hour, tzinfo=UTC)


@pytest.mark.parametrize(
    ("start", "end", "days"),
    [
        (at(3), at(3), [1, 2, 3]),
        (at(1), at(3), [1, 2, 3]),
        (at(2, 0), at(3, 0), [1, 2, 3]),
        (at(1, 0), at(5, 0), [1, 4, 5]),
    ],
)
def test_the_last_complete_day_of_a_runs_data_interval_is_evaluated_on(
    start: datetime, end: datetime, days: list[int]
) -> None:
    interval = read_interval(None, None, (start, end))
    assert interval is not None
    assert [moment.day for moment in interval.moments()] == days


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
def test_the_logical_date_of_a_day_is_that_of_its_scheduled_run_also_on_days_of_clock_changes(
    zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two logical dates, the day would be trained twice. In Berlin, 02:00 comes twice on October 25th."""
    monkeypatch.setattr(settings, "LOG_TIMEZONE", zone)
    timetable = CronTriggerTimetable(f"0 {settings.DAILY_HOUR} * * *", timezone=zone)
    restriction = TimeRestriction(pendulum.datetime(2026, 1, 2), None, True)
    last, scheduled = None, []
    for _ in range(365):
        run = timetable.next_dagrun_info(last_automated_data_interval=last, restriction=restriction)
        assert run is not None and run.logical_date is not None
        last = run.data_interval
        scheduled.append(run.logical_date)
    evaluated = [(moment.astimezone(ZoneInfo(zone)).date() - timedelta(days=1)).isoformat() for moment in scheduled]
    assert len(set(evaluated)) == 365
    assert [datetime.fromisoformat(scheduled_moment(day)) for day in evaluated] == scheduled


@pytest.mark.parametrize(
    "day", ["foo", "", "2026-02-30", "2026-01-31T07", "20260131", " 2026-01-31", "9999-12-31", "٢٠٢٦-٠١-٣١"]
)
def test_a_partition_key_that_is_no_day_is_named_with_what_is_allowed(day: str) -> None:
    with pytest.raises(SpecError, match=r"partition_key: '.*' is not allowed; allowed: a day, 2026-01-31"):
        scheduled_moment(day)


def test_a_run_for_no_day_says_that_it_needs_one() -> None:
    with pytest.raises(SpecError, match=r"partition_key is missing; needed: a day, 2026-01-31; .*trigger the run"):
        scheduled_moment(None)


def test_a_run_without_a_logical_date_and_days_uses_all_data() -> None:
    assert read_interval(None, None, None) is None


def test_days_in_the_form_go_before_the_data_interval_and_the_next_day_is_evaluated_on() -> None:
    interval = read_interval("2026-01-01T00:00:00+00:00", "2026-01-04", (at(20), at(21)))
    assert interval is not None
    assert [moment.day for moment in interval.moments()] == [1, 4, 5]


@pytest.mark.parametrize(("start", "end"), [(None, "2026-01-02"), ("2026-01-02", "2026-01-01"), ("soon", None)])
def test_impossible_days_are_refused(start: str | None, end: str | None) -> None:
    with pytest.raises(SpecError):
        read_interval(start, end, None)


@pytest.mark.parametrize("end", [None, "2026-01-02"])
def test_a_day_beside_the_moments_is_evaluated_on_instead_of_the_one_after_the_training(end: str | None) -> None:
    interval = read_interval("2026-01-01", end, None, evaluation_day="2026-01-03")
    assert interval is not None
    assert [moment.day for moment in interval.moments()] == [1, 2, 4]
    assert interval.evaluation_begin == "2026-01-03T00:00:00+00:00"
    # The day that is evaluated on without it is named as before: a job that was begun is found again.
    assert read_interval("2026-01-01", end, None, evaluation_day="2026-01-02") == read_interval("2026-01-01", end, None)


def test_a_day_to_evaluate_on_needs_the_first_moment_and_comes_after_the_training() -> None:
    with pytest.raises(
        SpecError, match=r"evaluation_day: 2026-01-02 is not allowed; allowed: a day from .*2026-01-03T"
    ):
        read_interval("2026-01-01", "2026-01-03", None, evaluation_day="2026-01-02")
    with pytest.raises(SpecError, match=r"interval_start: empty is not allowed"):
        read_interval(None, "2026-01-02", None, evaluation_day="2026-01-03")


def test_an_unknown_key_is_refused_with_the_known_ones_and_the_nearest() -> None:
    known = training_params(JOBS)
    with pytest.raises(SpecError, match=r"(?s)conf\.jobfile.*allowed: .*start_from.*did you mean 'job_file'.*conf\.x:"):
        refuse_unknown({"jobfile": "mine.yaml", "x": 1, "job": None}, known)
    with pytest.raises(SpecError, match="the DAG has no params"):
        refuse_unknown({"job_file": "mine.yaml"}, ())
    refuse_unknown({"job_file": "mine.yaml", "airflow/task_span_detail_level": 1}, known)
