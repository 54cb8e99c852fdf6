"""Prepares a job before anything starts: finds its rows and the record to continue from, and refuses invalid jobs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import structlog

from elastrec.checkpoints import compare, newest_records, open_record, open_store
from elastrec.checkpoints.manifest import RecordKind
from elastrec.checkpoints.record import Record
from elastrec.checkpoints.summary import ModelSummary
from elastrec.platform.clusters.backends import backend_of
from elastrec.platform.clusters.nodes import Capacity
from elastrec.platform.data.entries import DataManifest
from elastrec.platform.data.log_calendar import LogCalendar
from elastrec.platform.data.manifest import build_manifest, write_new_manifest
from elastrec.platform.data.partitions import Partition, existing_partitions, no_partition, other_folders
from elastrec.platform.jobs.features import with_figures, with_values
from elastrec.platform.jobs.starting.deduplication import with_groups
from elastrec.platform.jobs.starting.equal_labels import refuse_equal_labels
from elastrec.platform.jobs.starting.model_check import ModelCheck
from elastrec.platform.jobs.starting.reach import refuse_unreachable
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.jobs.types import Allocation, Interval, Prepared
from elastrec.platform.master.service.resumption import StartPositions, start_positions
from elastrec.platform.specs.data import Partitioning
from elastrec.platform.specs.errors import (
    MISSING,
    CheckpointError,
    DataError,
    ElastrecError,
    FieldProblem,
    NoRowsError,
    SpecError,
)
from elastrec.platform.specs.features import Vocabulary
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.text.loading import job_to_json
from elastrec.platform.specs.text.quantities import format_bytes
from elastrec.platform.specs.text.some import counted, some

log = structlog.get_logger(__name__)
_LONGEST_JOB_ID = 45
_NAMED = 8
_START_RECORDS = 3
"""Number of the newest records of other jobs from which a job may continue."""
_SHOW: dict[str, Callable[[float], str]] = {
    "cores": lambda amount: f"{amount:g}",
    "memory": lambda amount: format_bytes(int(amount)),
}


def job_id_for(name: str, owner_key: str) -> str:
    """The identity of one run of a job: the same name and key always give the same id (at most 45 characters).

    Args:
        name: the job file's `metadata.name`.
        owner_key: identifies the run, for example DAG id and logical date.
    """
    digest = hashlib.sha256(f"{name}|{owner_key}".encode()).hexdigest()[:8]
    stem = re.sub(r"[^a-z0-9-]+", "-", name.lower())[: _LONGEST_JOB_ID - 9].strip("-")
    return f"{stem}-{digest}"


@dataclass(frozen=True)
class _Rows:
    training: DataManifest
    evaluation: DataManifest
    interval: Interval


@dataclass(frozen=True)
class _Start:
    """URIs of the record to start from and of alternatives if it is damaged.

    Attributes:
        first: the record of the first one; None without records.
    """

    records: list[str]
    adaptation: str = ""
    first: Record | None = None

    @property
    def model(self) -> ModelSummary | None:
        """The first record's."""
        return None if self.first is None else self.first.manifest.model


def prepare(platform: Platform, job: TrainingJob, job_id: str, interval: Interval | None = None) -> Prepared:
    """Checks job, data, cluster and record, and writes the data manifests. Starts no pod.

    Files of a job that runs under this id are not overwritten, because manifests of other rows have other names.

    Args:
        interval: the partitions for training and evaluation; None: the newest partition is used for evaluation, all
            others for training.

    Raises:
        SpecError: the job cannot run: wrong model, no such data, paths that pods cannot reach, larger than the cluster,
            refused adaptation, evaluation rows on which no model can be judged.
        DataError: files are unreadable or have another schema.
    """
    job = with_values(_absolute(platform, job))
    refuse_unreachable(platform, job)
    _check_capacity(platform, job)
    with ModelCheck(job) as model:
        try:
            rows = _find_rows(job, interval)
            refuse_equal_labels(job, job_id, rows.evaluation)
            start = _find_start(job, rows)
            job, fitted = with_figures(job, rows.training, start.model)
            job, deduplication = with_groups(job, rows.training)
            # Only now the order of the rows is known.
            begin = _begin(job, rows, start.first)
            untrained = _untrained(job, rows, start.first)
        except ElastrecError:
            # Problems of the model are reported before problems of the data.
            model.wait()
            raise
        model.wait()
    # Only here is the store created; pods expect it to exist.
    open_store(job.spec.checkpoint.store).create()
    start_record, *older_start_records = start.records or [""]
    folder = f"{platform.work_uri}/manifests/{job_id}"
    training = write_new_manifest(rows.training, f"{folder}/training")
    evaluation = write_new_manifest(rows.evaluation, f"{folder}/evaluation")
    prepared = Prepared(
        job_id=job_id,
        job_json=job_to_json(job),
        interval=rows.interval,
        training_manifest=training,
        evaluation_manifest=evaluation,
        training_rows=rows.training.rows,
        evaluation_rows=rows.evaluation.rows,
        training_digest=rows.training.digest,
        start_record=start_record,
        older_start_records=older_start_records,
        start_positions=begin.positions,
        start_note=begin.note,
        untrained=untrained,
        adaptation=start.adaptation,
        deduplication=deduplication,
        fitted=fitted,
    )
    log.info(
        "job_prepared",
        job_id=job_id,
        training_rows=prepared.training_rows,
        evaluation_rows=prepared.evaluation_rows,
        start_record=start_record or "nothing",
        begins=begin.note,
    )
    return prepared


def allocated(job: TrainingJob, allocation: Allocation) -> TrainingJob:
    """The job file with the start-up sizes."""
    resources = job.spec.resources
    worker = resources.worker.model_copy(
        update={
            "count": allocation.workers,
            "cores": allocation.worker_cores,
            "memory": allocation.worker_memory_bytes,
        }
    )
    server = resources.parameter_server.model_copy(
        update={
            "count": allocation.parameter_servers,
            "cores": allocation.parameter_server_cores,
            "memory": allocation.parameter_server_memory_bytes,
        }
    )
    resources = resources.model_copy(update={"worker": worker, "parameter_server": server})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"resources": resources})})


def resolved(path: str, base: str) -> str:
    """A path or URI of a job file; relative paths are resolved against `base`."""
    if "://" in path or Path(path).is_absolute():
        return path
    return f"{base.rstrip('/')}/{path}"


def _absolute(platform: Platform, job: TrainingJob) -> TrainingJob:
    spec = job.spec
    base = str(platform.base_folder)
    data: dict[str, object] = {"path": resolved(spec.data.path, base)}
    data["features"] = {
        name: tuple(
            step.model_copy(update={"file": resolved(step.file, base)})
            if isinstance(step, Vocabulary) and step.file
            else step
            for step in steps
        )
        for name, steps in spec.data.features.items()
    }
    if spec.data.evaluation_path:
        data["evaluation_path"] = resolved(spec.data.evaluation_path, base)
    store = resolved(spec.checkpoint.store, platform.work_uri)
    spec = spec.model_copy(
        update={
            "data": spec.data.model_copy(update=data),
            "checkpoint": spec.checkpoint.model_copy(update={"store": store}),
        }
    )
    return job.model_copy(update={"spec": spec})


def _check_capacity(platform: Platform, job: TrainingJob) -> None:
    capacity = Capacity.of(platform.launcher.nodes())
    total, largest = capacity.total, capacity.largest
    problems = []
    memory = job.spec.checkpoint.memory
    volume_bytes = 0 if memory is None else backend_of(platform.cluster_config).bytes_of_volume(memory)
    beside = " with spec.checkpoint.memory" if volume_bytes else ""
    for role in ("master", "worker", "parameter_server", "evaluator"):
        described = getattr(job.spec.resources, role)
        has_volume = role == "parameter_server"
        for amount, limit, name, note in (
            (described.cores, largest.cores, "cores", ""),
            (described.memory + volume_bytes * has_volume, largest.memory_bytes, "memory", beside * has_volume),
        ):
            if amount > limit:
                problems.append(
                    FieldProblem(
                        f"spec.resources.{role}.{name}",
                        f"{_SHOW[name](amount)}{note}",
                        f"at most {_SHOW[name](limit)}, all that the cluster's largest node has",
                        "ask for less or use a larger cluster",
                    )
                )
    resources = job.spec.resources
    for_records = volume_bytes * resources.parameter_server.count
    least = [resources.master, *[resources.parameter_server] * resources.parameter_server.count, resources.worker]
    for name, amount, limit in (
        ("cores", sum(pod.cores for pod in least), total.cores),
        ("memory", sum(pod.memory for pod in least) + for_records, total.memory_bytes),
    ):
        if amount > limit and not problems:
            problems.append(
                FieldProblem(
                    f"spec.resources.*.{name}",
                    f"{_SHOW[name](amount)} for the master, every server{beside} and one worker",
                    f"at most {_SHOW[name](limit)} together, all that the cluster has",
                    "ask for smaller or fewer servers",
                )
            )
    if problems:
        raise SpecError(problems, "the job, compared with the cluster")


def _find_rows(job: TrainingJob, interval: Interval | None) -> _Rows:
    data = job.spec.data
    if data.partitioning is Partitioning.NONE:
        if not data.evaluation_path:
            problem = FieldProblem(
                "spec.data.evaluation_path",
                MISSING,
                "a folder with the rows to evaluate on, since the data has no partitions",
                "add it, or make daily partitions with `elastrec data convert`",
            )
            raise SpecError([problem], "the job's data")
        evaluation_data = data.model_copy(update={"path": data.evaluation_path})
        return _Rows(
            build_manifest(data, None), build_manifest(evaluation_data, None), interval or Interval("", "", "")
        )
    calendar = LogCalendar(data.timezone, data.partitioning)
    if interval is None:
        training, evaluation = _newest_last(job, existing_partitions(data))
        bounds = calendar.begin(training[0]), calendar.begin(evaluation[0]), calendar.end(evaluation[-1])
        interval = Interval(*(moment.isoformat() for moment in bounds))
    else:
        interval = interval.resolved(data.timezone)
        start, end, evaluation_end = interval.moments()
        evaluation_begin = datetime.fromisoformat(interval.evaluation_begin)
        if not start < end <= evaluation_begin < evaluation_end:
            problem = FieldProblem(
                "interval",
                " .. ".join(dict.fromkeys((interval.start, interval.end, interval.evaluation_begin)))
                + f" .. {interval.evaluation_end}",
                "start before end, and evaluation that begins at that end or later, before its own end",
            )
            raise SpecError([problem], "the data interval")
        training = calendar.between(start, end)
        evaluation = calendar.between(evaluation_begin, evaluation_end)
    training_manifest = build_manifest(data, training)
    try:
        return _Rows(training_manifest, build_manifest(data, evaluation), interval)
    except NoRowsError as error:
        raise NoRowsError(
            f"{error}. Without these rows, the job can be evaluated on later ones: `--evaluate-from DATE`, in Airflow "
            "*Day to evaluate on* beside *First moment to train on*"
        ) from error


def _newest_last(job: TrainingJob, partitions: list[Partition]) -> tuple[list[Partition], list[Partition]]:
    if not partitions and other_folders(job.spec.data):
        raise no_partition(job.spec.data)
    if len(partitions) < 2:
        problem = FieldProblem(
            "spec.data.path",
            f"{job.spec.data.path!r} ({counted(len(partitions), 'partition')})",
            "at least two partitions: one to train on and the next to evaluate on",
            "generate or convert more data, or check the path",
        )
        raise SpecError([problem], "the job's data")
    return partitions[:-1], partitions[-1:]


def _find_start(job: TrainingJob, rows: _Rows) -> _Start:
    """Finds the record from which the job starts.

    Arrays are checked when servers read them, because checking them here would read the whole model twice.
    """
    start_from = job.spec.continual.start_from
    if start_from == "nothing":
        return _Start([])
    try:
        if start_from == "latest":
            bound = rows.interval.moments()[0].astimezone(UTC).isoformat() if rows.interval.start else None
            found = newest_records(
                job.spec.checkpoint.store, job.metadata.name, RecordKind.FINAL, interval_end_at_most=bound
            )
            records = list(islice(found, _START_RECORDS))
        else:
            records = [open_record(start_from)]
    except CheckpointError as error:
        raise _no_start(start_from, error) from None
    if not records:
        return _Start([])
    first, *older = records
    adaptation = compare(first.manifest.model, job)
    adaptation.raise_if_refused()
    usable = [record.uri for record in older if _fits(record, job)]
    log.info("continues_from", record=first.uri, exact=adaptation.is_exact, else_from=usable)
    return _Start([first.uri, *usable], str(adaptation), first)


def _begin(job: TrainingJob, rows: _Rows, first: Record | None) -> StartPositions:
    """The first row, or the positions of a periodic record, if they refer to the same rows."""
    if first is None or first.manifest.kind is not RecordKind.PERIODIC:
        return StartPositions("", "")
    try:
        return start_positions(first, job, rows.training.digest, rows.training.rows)
    except CheckpointError as error:
        raise _no_start(job.spec.continual.start_from, error) from None


def _untrained(job: TrainingJob, rows: _Rows, first: Record | None) -> str:
    """The partitions that exist between the rows of the newest record and those of the job: of a day that has failed,
    or was not scheduled, later days have learned nothing."""
    data = job.spec.data
    if first is None or job.spec.continual.start_from != "latest" or data.partitioning is Partitioning.NONE:
        return ""
    start, end = rows.interval.moments()[0], first.manifest.interval_end
    if not end or datetime.fromisoformat(end) >= start:
        return ""
    calendar, after = LogCalendar(data.timezone, data.partitioning), datetime.fromisoformat(end)
    try:
        between = [partition for partition in existing_partitions(data) if after <= calendar.begin(partition) < start]
    except DataError as error:
        # A folder with an odd name beside the job's own ones is no reason to refuse the job.
        log.warning("partitions_not_compared", record=first.uri, reason=str(error))
        return ""
    if not between:
        return ""
    names = some([str(partition) for partition in between], _NAMED)
    log.warning("partitions_not_trained", record=first.uri, partitions=names)
    return (
        f"{counted(len(between), 'partition')} between the rows of the record that it continues from and its own rows "
        f"not trained: {names}. To train on them, run them before this one, the earliest first"
    )


def _no_start(start_from: str, error: CheckpointError) -> SpecError:
    problem = FieldProblem(
        "spec.continual.start_from", f"{start_from!r} ({error})", "latest, nothing or the URI of a complete record"
    )
    return SpecError([problem], "the checkpoint to continue from")


def _fits(record: Record, job: TrainingJob) -> bool:
    try:
        compare(record.manifest.model, job).raise_if_refused()
    except SpecError:
        return False
    return True
