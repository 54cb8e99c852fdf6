"""The form of a training DAG: its fields with their JSON schemas, and the conversion of a filled-in form to a job and
an interval."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from airflow.sdk import Param

from elastrec.operators import settings
from elastrec.platform.specs.errors import MISSING, FieldProblem, SpecError, near
from elastrec.platform.specs.text.loading import load_job

if TYPE_CHECKING:
    from elastrec.platform.jobs import Interval
    from elastrec.platform.specs.job import TrainingJob

_MOMENT: dict[str, Any] = {"type": ["string", "null"], "format": "date-time"}
_DAY = timedelta(days=1)
_AIRFLOWS_OWN = "airflow/"


def training_params(jobs_folder: Path, default: str | None = None) -> dict[str, Param]:
    """The fields of the form, in order.

    Args:
        jobs_folder: the form offers its `*.yaml` files; any other path can be entered.
        default: the initial value of the field; None: the field is empty.
    """
    files = sorted(file.name for file in jobs_folder.glob("*.yaml"))
    return {
        "job_file": Param(
            default,
            title="Job file",
            type=["string", "null"],
            minLength=1,
            examples=files,
            description_md=f"A file of `{jobs_folder.name}/`, or the path of another file. Empty: what the variable "
            f"`{settings.JOB_FILE_VARIABLE}` of Airflow names.",
        ),
        "job": Param(
            None,
            title="Inline job",
            description_md="A whole TrainingJob as JSON; used instead of the job file. The task `prepare_data` checks "
            "it and names every problem.",
            # If a value does not match, Airflow shows the whole schema, so the schema of a job would hide the problem.
            # The form sends {} for an empty editor.
            type=["object", "null"],
            properties={"apiVersion": {}, "kind": {}, "metadata": {"type": "object"}, "spec": {"type": "object"}},
            additionalProperties=False,
        ),
        "evaluation_day": Param(
            None,
            title="Day to evaluate on",
            type=["string", "null"],
            format="date",
            description_md="A day in the time zone of the log, `spec.data.timezone`; the day before is trained on, or "
            "what the moments below say. Empty: the moments below, or the run's logical date.",
            section="Days to train on",
        ),
        "interval_start": Param(
            None,
            title="First moment to train on",
            description_md="Empty: the run's logical date decides, as for a scheduled run: the day before it is "
            "evaluated on, the day before that one is trained on. A run without a logical date evaluates on the newest "
            "partition of the data and trains on all others.",
            section="Days to train on",
            **_MOMENT,
        ),
        "interval_end": Param(
            None,
            title="End of training, begin of evaluation",
            description_md="The day that begins here is evaluated on, unless a later day to evaluate on is given. "
            "Empty: one day after the first moment.",
            section="Days to train on",
            **_MOMENT,
        ),
        "overrides": Param(
            {},
            title="Overrides",
            type=["object", "null"],
            propertyNames={"pattern": r"^(metadata|spec)\.[\w.]+$"},
            description_md='Single fields by dotted path, for example `{"spec.training.batch_size": 1024}`.',
            section="Changes to the job",
        ),
        "start_from": Param(
            None,
            title="Start from",
            type=["string", "null"],
            minLength=1,
            examples=["latest", "nothing"],
            description_md="`latest`: yesterday's checkpoint; `nothing`: fresh; or the URI of a record. Empty: as the "
            "job file says.",
            section="Changes to the job",
        ),
    }


def read_job(
    jobs_folder: Path,
    job_file: str | None,
    job: Mapping[str, Any] | None,
    overrides: Mapping[str, Any] | None,
    start_from: str | None,
) -> TrainingJob:
    """The job of a filled-in form.

    Raises:
        SpecError: neither file nor inline job is given, or the job is wrong; names every problem.
    """
    changes = dict(overrides or {})
    if start_from:
        changes["spec.continual.start_from"] = start_from
    if job:
        return load_job(job, changes)
    if not job_file:
        problem = FieldProblem(
            "job_file",
            "empty",
            "the name of a job file",
            "choose one in the form or fill in an inline job; for scheduled runs set the Airflow variable "
            f"{settings.JOB_FILE_VARIABLE} (or the environment variable "
            f"AIRFLOW_VAR_{settings.JOB_FILE_VARIABLE.upper()})",
        )
        raise SpecError([problem], "the form")
    file = Path(job_file)
    return load_job(file if file.is_absolute() else jobs_folder / file, changes)


def refuse_unknown(conf: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuses keys in a run's `conf` that are not fields of its DAG's form, which Airflow itself would ignore.

    Raises:
        SpecError: names every unknown key, the known ones and the nearest of these.
    """
    problems = []
    for key in conf:
        if key in known or key.startswith(_AIRFLOWS_OWN):
            continue
        allowed = ", ".join(sorted(known)) or "nothing: the DAG has no params"
        problems.append(FieldProblem(f"conf.{key}", "an unknown key", allowed, near(key, known) or "remove it"))
    if problems:
        raise SpecError(problems, "the run's configuration")


def scheduled_moment(day: str | None) -> str:
    """The logical date of the scheduled run that evaluates on a day, `2026-01-31`, of the click log.

    Of an hour that a clock change repeats, this is the second one, in which Airflow's cron timetables start the run.

    Args:
        day: the partition key of an event of the asset `click_log`; None: the run has none, because it was started by
            hand without one.

    Raises:
        SpecError: it is no such day.
    """
    zone = ZoneInfo(settings.LOG_TIMEZONE)
    try:
        # Other forms of a date, and dates with a time, are no days in the form of the DAG that is started.
        if day is None or not re.fullmatch(r"\d{4}-\d{2}-\d{2}", day):
            raise ValueError
        after = (datetime.fromisoformat(day) + _DAY).replace(hour=settings.DAILY_HOUR, tzinfo=zone)
    except (ValueError, OverflowError):
        remedy = "create the event, or trigger the run, with the day as partition key"
        problem = FieldProblem("partition_key", MISSING if day is None else repr(day), "a day, 2026-01-31", remedy)
        raise SpecError([problem], f"the event of the asset {settings.CLICK_LOG_ASSET}") from None
    # Of an hour that a clock change leaves out, fold=1 would be the earlier moment.
    return max(after.replace(fold=fold).astimezone(UTC) for fold in (0, 1)).astimezone(zone).isoformat()


def read_interval(
    interval_start: str | None,
    interval_end: str | None,
    run_interval: tuple[datetime, datetime] | None,
    *,
    evaluation_day: str | None = None,
    timezone: str = "UTC",
) -> Interval | None:
    """The interval of a filled-in form; None: the newest partitions of the data.

    Without days in the form, the days of the run's data interval in the log's time zone are used: the last complete day
    for evaluation, the others for training, at least one. So a run started by hand with the logical date of a scheduled
    run trains on the same rows.

    A day beside the moments is evaluated on instead of the one that begins where the training ends: of a log whose next
    day has no rows, the day before that one can be trained on all the same.

    Args:
        interval_start, interval_end: ISO 8601, or empty; without an offset they are moments of the log's time zone.
        run_interval: start and end of the DAG run's data interval; None for a run without a logical date.
        evaluation_day: ISO 8601 date, or empty; without moments, training uses the day before it.
        timezone: of the log.

    Raises:
        SpecError: an end without a start, an end that is not after the start, or a day to evaluate on before the end.
    """
    from elastrec.platform.jobs import Interval

    day = _moment(evaluation_day, "evaluation_day") if evaluation_day else None
    if day is not None and not interval_start and not interval_end:
        return Interval((day - _DAY).isoformat(), day.isoformat()).resolved(timezone)
    if not interval_start:
        if interval_end:
            raise SpecError(
                [FieldProblem("interval_start", "empty", "a moment, since interval_end is given")], "the form"
            )
        if run_interval is None:
            return None
        # Without offsets: the beginnings of days in the log's calendar.
        first, after_last = (
            moment.astimezone(ZoneInfo(timezone)).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
            for moment in run_interval
        )
        return Interval(min(first, after_last - 2 * _DAY).isoformat(), (after_last - _DAY).isoformat()).resolved(
            timezone
        )
    ends = _moment(interval_end, "interval_end").isoformat() if interval_end else ""
    interval = Interval(
        _moment(interval_start, "interval_start").isoformat(), ends, evaluation_start=day.isoformat() if day else ""
    ).resolved(timezone)
    start, end, _ = interval.moments()
    if end <= start:
        allowed = f"a moment after interval_start {start.isoformat()}"
        raise SpecError([FieldProblem("interval_end", end.isoformat(), allowed)], "the form")
    if datetime.fromisoformat(interval.evaluation_begin) < end:
        allowed = f"a day from the end of the training on, {end.isoformat()}"
        raise SpecError([FieldProblem("evaluation_day", str(evaluation_day), allowed)], "the form")
    return interval


def _moment(text: str, field: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        problem = FieldProblem(field, repr(text), "ISO 8601, for example 2026-01-31T00:00:00+00:00")
        raise SpecError([problem], "the form") from None
