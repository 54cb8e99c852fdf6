"""The form of a training DAG: its fields with JSON schema, and how a filled-in form becomes job and interval."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import Param

from elastrec.platform.specs.crd import job_json_schema
from elastrec.platform.specs.errors import FieldProblem, SpecError
from elastrec.platform.specs.loading import load_job

if TYPE_CHECKING:
    from elastrec.platform.jobs import Interval
    from elastrec.platform.specs.job import TrainingJob

_MOMENT: dict[str, Any] = {"type": ["string", "null"], "format": "date-time"}


def training_params(jobs_folder: Path, default: str) -> dict[str, Param]:
    """The fields of the form, in order.

    Args:
        jobs_folder: its `*.yaml` files are offered; any other path can be typed.
        default: the file that is filled in.
    """
    files = sorted(file.name for file in jobs_folder.glob("*.yaml"))
    inline = {key: part for key, part in job_json_schema().items() if key not in ("title", "description", "required")}
    return {
        "job_file": Param(
            default,
            title="Job file",
            type=["string", "null"],
            minLength=1,
            examples=files,
            description_md=f"A ready file of `{jobs_folder.name}/`, or the path of your own.",
        ),
        "job": Param(
            None,
            title="Inline job",
            description_md="A whole TrainingJob as JSON; used instead of the job file. Checked against the job schema.",
            # The form sends {} for an empty editor: what is required is left to the check of the whole job.
            **{**inline, "type": ["object", "null"]},
        ),
        "interval_start": Param(
            None,
            title="First moment to train on",
            description_md="Empty: a scheduled run trains on the day before the newest complete day and is evaluated "
            "on the newest; a run started by hand takes the newest partition of the data for evaluation and all "
            "others for training.",
            section="Data interval",
            **_MOMENT,
        ),
        "interval_end": Param(
            None,
            title="End of training, begin of evaluation",
            description_md="The day that begins here is evaluated on. Empty: one day after the first moment.",
            section="Data interval",
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
    """The job that a filled-in form means.

    Raises:
        SpecError: neither file nor inline job is given, or the job is wrong; names every problem.
    """
    changes = dict(overrides or {})
    if start_from:
        changes["spec.continual.start_from"] = start_from
    if job:
        return load_job(job, changes)
    if not job_file:
        problem = FieldProblem("job_file", "empty", "the name of a job file", "choose one, or fill in an inline job")
        raise SpecError([problem], "the form")
    file = Path(job_file)
    return load_job(file if file.is_absolute() else jobs_folder / file, changes)


def read_interval(
    interval_start: str | None, interval_end: str | None, run_end: datetime | None, *, by_hand: bool
) -> Interval | None:
    """The days that a filled-in form means; None: the newest partitions of the data.

    Args:
        interval_start, interval_end: ISO 8601, or empty.
        run_end: end of the DAG run's data interval.
        by_hand: a person started the run.

    Raises:
        SpecError: an end without a start, or an end that is not after the start.
    """
    from elastrec.platform.jobs import Interval, day_interval

    if not interval_start:
        if interval_end:
            raise SpecError(
                [FieldProblem("interval_start", "empty", "a moment, since interval_end is given")], "the form"
            )
        if by_hand or run_end is None:
            return None
        newest_complete_day = run_end.astimezone(UTC) - timedelta(days=1)
        return day_interval(newest_complete_day - timedelta(days=1))
    start = _moment(interval_start, "interval_start")
    end = _moment(interval_end, "interval_end") if interval_end else start + timedelta(days=1)
    if end <= start:
        problem = FieldProblem("interval_end", end.isoformat(), f"a moment after interval_start {start.isoformat()}")
        raise SpecError([problem], "the form")
    return Interval(start.isoformat(), end.isoformat(), (end + timedelta(days=1)).isoformat())


def _moment(text: str, field: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        problem = FieldProblem(field, repr(text), "ISO 8601, for example 2026-01-31T00:00:00+00:00")
        raise SpecError([problem], "the form") from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
