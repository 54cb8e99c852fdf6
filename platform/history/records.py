"""The description of a job in its MLflow run: written at its start, and read back as a JobRecord. Pure."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from datetime import datetime, time, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from elastrec.platform.history import metric_names as names
from elastrec.platform.history.words import money
from elastrec.platform.specs.elasticity import PaidPrices
from elastrec.platform.specs.errors import HistoryError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.specs.shape import Shape
from elastrec.platform.specs.text.uris import masked

if TYPE_CHECKING:
    # At run time jobs import history.
    from elastrec.platform.jobs.types import Allocation, Interval, Prepared

TAG_JOB_ID = "elastrec.job_id"
TAG_JOB_NAME = "elastrec.job_name"
TAG_EARLIER_TERMS = "elastrec.earlier_terms"
"""Terms of the job up to this number belong to earlier trainings than the run's. A job that is trained again under the
same id has a run for each training."""
TAG_PHASE = "elastrec.phase"
"""While the job runs, its master writes it when the phase changes; the final one is written by `History.finish_run`."""
TAG_REASON = "elastrec.reason"
TAG_DESCRIBED = "elastrec.described"
TAG_SIZES = "elastrec.sizes"
"""The last sizes of the job's pods, as JSON, written at its end."""
TAG_SHAPE_CHANGES = "elastrec.shape_changes"
TAG_GATE = "elastrec.gate"
TAG_GATE_REASON = "elastrec.gate_reason"
TAG_TURN = "elastrec.turn"
"""Of a model version while it may become champion."""
TAG_CHAMPION_RUN = "elastrec.champion_run"
"""Run of the champion with which the model was compared on the evaluation rows."""
TAG_INTERVAL_END = "elastrec.interval.end"
"""End of the training rows."""
TAG_EVALUATION_END = "elastrec.interval.evaluation_end"
"""End of the rows for evaluation."""
TAG_EVALUATION_START = "elastrec.interval.evaluation_start"
"""Start of the rows for evaluation: the end of the training rows, or later."""
TAG_AIRFLOW_URL = "airflow.url"
"""Page of the DAG run to which the job belongs."""
TAG_AIRFLOW_LOG = "airflow.log_url"
"""Log of the task that launched the job or, later, of the task that waits for it; of its newest try."""
_LABEL = "elastrec.label."
_PRICES = "prices."
# MLflow refuses longer values, its databases descriptions of more than 5000 characters; the whole job file is an
# artifact of the run.
_LONGEST_TAG = 4000
_LONGEST_PARAM = 6000
_FEATURES = {
    "training_rows": "data.training_rows",
    "batch_size": "training.batch_size",
    "embedding_dimension": "model.embedding_dimension",
    "dense_features": "data.dense_features",
    "sparse_features": "data.sparse_features",
    "tables": "data.tables",
}
"""Parameters by which similar jobs are found, by the names of `JobRecord.features`."""


def run_name(job_name: str, interval: Interval, attempt: int = 1) -> str:
    """The name in MLflow's list of runs: the job and the days of its training rows, both inclusive.

    `clicks 2026-01-03`, `clicks 2026-01-01 to 2026-01-03`, for other intervals start and end with their times; only the
    job's name if the job reads all of its data. A further attempt adds ` (attempt 2)`.
    """
    name = f"{job_name} {days(interval.start, interval.end)}".rstrip()
    return name if attempt == 1 else f"{name} (attempt {attempt})"


def dataset_name(data_path: str, interval: Interval, context: str) -> str:
    """The name in MLflow's list of data sets: the log's folder and the days, as in `run_name`.

    Args:
        context: `training` or `evaluation`.
    """
    evaluated = (interval.evaluation_begin, interval.evaluation_end)
    moments = evaluated if context == "evaluation" else (interval.start, interval.end)
    return f"{data_path.rstrip('/').rpartition('/')[2]} {days(*moments)}".rstrip()


def days(begin: str, until: str) -> str:
    """The days of an interval in the time zone of the log, both inclusive; empty if a job reads all of its data.

    Args:
        begin, until: ISO 8601 text with the offsets of the log's time zone, as in a resolved `jobs.types.Interval`.
    """
    if not begin:
        return ""
    start, end = datetime.fromisoformat(begin), datetime.fromisoformat(until)
    if any(moment.time() != time.min for moment in (start, end)):
        return f"{start:%Y-%m-%dT%H:%M} to {end:%Y-%m-%dT%H:%M}"
    # Dates, because a day may have 23 or 25 hours.
    first, last = start.date(), end.date() - timedelta(days=1)
    return f"{first}" if last <= first else f"{first} to {last}"


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """The pods of a job and their sizes."""

    workers: int
    worker_cores: float
    worker_memory_bytes: int
    parameter_servers: int
    parameter_server_cores: float
    parameter_server_memory_bytes: int

    @staticmethod
    def asked(job: TrainingJob) -> Sizes:
        """The sizes in the job file."""
        return Sizes.of_shape(Shape.of(job.spec.resources))

    @staticmethod
    def granted(allocation: Allocation) -> Sizes:
        """The sizes with which the job was started."""
        return Sizes(**{field: getattr(allocation, field) for field in Sizes.__struct_fields__})

    @staticmethod
    def of_shape(shape: Shape) -> Sizes:
        """The sizes in a shape."""
        worker, server = shape[Role.WORKER], shape[Role.PARAMETER_SERVER]
        return Sizes(
            workers=worker.count,
            worker_cores=worker.size.cores,
            worker_memory_bytes=worker.size.memory_bytes,
            parameter_servers=server.count,
            parameter_server_cores=server.size.cores,
            parameter_server_memory_bytes=server.size.memory_bytes,
        )


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One job of the past or present.

    Attributes:
        phase: the last one written; Training, for example, if the job was killed with its master. Starting, if its
            master has not reached MLflow since the launch.
        interval: ISO 8601 start and end of its training data.
        features: numbers by which similar jobs are found: training_rows, batch_size, embedding_dimension,
            dense_features, sparse_features and tables.
        labels: the job file's own labels.
        metrics: the last value of every metric.
        started_unix_seconds, ended_unix_seconds: of the run; the end is None while it is open.
        airflow_url: page of the DAG run to which the job belongs; `log_url`: log of the task that waits for it. Empty
            if there is none.
        prices: of its cores and memory; None if its job file has none.
        last: the sizes with which it ended; the granted ones if it never changed, or while it runs.
        shape_changes: how often its sizes changed.
    """

    run_id: str
    job_id: str
    job_name: str
    team: str
    architecture: str
    phase: Phase
    reason: str
    interval: tuple[str, str]
    asked: Sizes
    granted: Sizes
    last: Sizes
    features: dict[str, float]
    labels: dict[str, str]
    metrics: dict[str, float]
    started_unix_seconds: float
    ended_unix_seconds: float | None
    airflow_url: str = ""
    log_url: str = ""
    prices: PaidPrices | None = None
    shape_changes: int = 0

    @property
    def auc(self) -> float | None:
        """On the evaluation rows."""
        return self.metrics.get(names.EVALUATION_AUC)

    @property
    def normalized_entropy(self) -> float | None:
        """On the evaluation rows."""
        return self.metrics.get(names.EVALUATION_NORMALIZED_ENTROPY)

    @property
    def samples_trained(self) -> float | None:
        return self.metrics.get(names.SAMPLES_TRAINED)

    @property
    def core_hours(self) -> float | None:
        """The cost of the job's pods so far."""
        return self.metrics.get(names.CORE_HOURS)

    @property
    def cost(self) -> str:
        """The cost of its cores and memory so far, with the currency; empty if unknown."""
        value = self.metrics.get(names.COST)
        return "" if value is None or self.prices is None else money(value, self.prices.currency)


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter for jobs; all given conditions must hold.

    Attributes:
        phases: any of these.
    """

    job_name: str | None = None
    job_id: str | None = None
    team: str | None = None
    architecture: str | None = None
    phases: tuple[Phase, ...] = ()
    labels: dict[str, str] = {}

    def expressions(self) -> list[str]:
        """MLflow filter strings; a job matches if any of them holds (MLflow has no OR).

        Raises:
            HistoryError: a text has both kinds of quotes, which MLflow's filters cannot express.
        """
        wanted = {
            TAG_JOB_NAME: self.job_name,
            TAG_JOB_ID: self.job_id,
            "elastrec.team": self.team,
            "elastrec.architecture": self.architecture,
            **{names.named(_LABEL + "{key}", key=key): value for key, value in self.labels.items()},
        }
        # Runs of other tools in the same experiment are not jobs.
        terms = [f"tags.`{TAG_DESCRIBED}` = 'true'"]
        terms += [f"tags.`{key}` = {_quoted(value)}" for key, value in wanted.items() if value is not None]
        together = " AND ".join(terms)
        if not self.phases:
            return [together]
        return [f"{together} AND tags.`{TAG_PHASE}` = '{phase.value}'" for phase in dict.fromkeys(self.phases)]


def _quoted(text: str) -> str:
    for quote in ("'", '"'):
        if quote not in text:
            return f"{quote}{text}{quote}"
    raise HistoryError(f"filter: {text!r} is not allowed; allowed: text with only one kind of quotes")


class Description(msgspec.Struct, frozen=True):
    """The data that is written to a run at its start."""

    params: dict[str, str]
    tags: dict[str, str]


def describe(job: TrainingJob, prepared: Prepared, allocation: Allocation) -> Description:
    """Parameters and tags of a job that is about to start, without passwords of URIs."""
    spec = job.spec
    asked, granted = Sizes.asked(job), Sizes.granted(allocation)
    rows, dense, weights = spec.optimizers.rows, spec.optimizers.dense, spec.first_order_rule
    prices = spec.history.prices.model_dump() if spec.history.prices is not None else {}
    params: dict[str, Any] = {
        **{f"asked.{key}": value for key, value in msgspec.structs.asdict(asked).items()},
        **{f"granted.{key}": value for key, value in msgspec.structs.asdict(granted).items()},
        "granted.source": allocation.source,
        "model.architecture": spec.model.architecture,
        "model.embedding_dimension": spec.model.embedding_dimension,
        "model.initial_range": spec.model.row_range,
        "model.options": msgspec.json.encode(spec.model.options, order="deterministic").decode(),
        "model.precision": spec.model.precision,
        "training.batch_size": spec.training.batch_size,
        "training.batches_per_shard": spec.training.batches_per_shard,
        "training.epochs": spec.training.epochs,
        "training.seed": spec.training.seed,
        "training.consistency": spec.training.consistency.mode,
        "training.staleness": spec.training.consistency.staleness,
        "training.overlap_pull": spec.training.overlap_pull,
        "optimizers.rows": rows.kind.value,
        "optimizers.rows.learning_rate": rows.learning_rate,
        **(
            {
                "optimizers.first_order": weights.kind.value,
                "optimizers.first_order.learning_rate": weights.learning_rate,
            }
            if weights is not None
            else {}
        ),
        "optimizers.dense": dense.kind.value,
        "optimizers.dense.learning_rate": dense.learning_rate,
        "resources.virtual_buckets": spec.resources.virtual_buckets,
        "data.path": spec.data.path,
        "data.days": days(prepared.interval.start, prepared.interval.end) or "all",
        "data.training_rows": prepared.training_rows,
        "data.evaluation_rows": prepared.evaluation_rows,
        "data.dense_features": len(spec.data.dense),
        "data.sparse_features": len(spec.data.sparse),
        "data.tables": len(spec.data.tables),
        "start_from": prepared.start_record or "nothing",
        **{_PRICES + name: price for name, price in prices.items()},
    }
    tags = {
        **{key: value for key, value in prepared.run_tags.items() if value},
        TAG_JOB_ID: prepared.job_id,
        TAG_JOB_NAME: job.metadata.name,
        "elastrec.team": job.metadata.team,
        "elastrec.architecture": spec.model.architecture,
        "elastrec.consistency": spec.training.consistency.mode,
        "elastrec.optimizer.rows": rows.kind.value,
        "elastrec.optimizer.dense": dense.kind.value,
        "elastrec.data.path": spec.data.path,
        "elastrec.data.format": spec.data.format.value,
        "elastrec.data.label": ", ".join(label.name for label in spec.data.label_columns),
        "elastrec.interval.start": prepared.interval.start,
        TAG_INTERVAL_END: prepared.interval.end,
        TAG_EVALUATION_START: prepared.interval.evaluation_begin,
        TAG_EVALUATION_END: prepared.interval.evaluation_end,
        "elastrec.start": "continued" if prepared.start_record else "fresh",
        TAG_PHASE: Phase.STARTING.value,
        **{names.named(_LABEL + "{key}", key=key): value for key, value in job.metadata.labels.items()},
    }
    return Description(
        params={key: masked(str(value))[:_LONGEST_PARAM] for key, value in params.items()},
        tags={key: tag_text(value) for key, value in tags.items()},
    )


def tag_text(text: str) -> str:
    """A text as the value of a tag or as a description: without passwords of URIs, and at most 4000 characters."""
    return masked(text)[:_LONGEST_TAG]


def note(prepared: Prepared) -> str:
    """The run's description, in Markdown, without passwords of URIs."""
    interval = prepared.interval
    trained = days(interval.start, interval.end)
    evaluated = days(interval.evaluation_begin, interval.evaluation_end)
    lines = [
        f"Trains on {prepared.training_rows:,} rows"
        + (f" of {trained}" if trained else "")
        + f", is evaluated on {prepared.evaluation_rows:,} rows"
        + (f" of {evaluated}." if evaluated else "."),
    ]
    if page := prepared.run_tags.get(TAG_AIRFLOW_URL):
        lines.append(f"Started by [this DAG run]({page}) in Airflow.")
    if prepared.start_record:
        lines.append(f"Continued from `{prepared.start_record}`.")
    if prepared.untrained:
        lines.append(f"{prepared.untrained}.")
    lines += [f"```\n{table}\n```" for table in prepared.tables]
    return masked("\n\n".join(lines))


def metric_value(stored: float) -> float:
    """The value of a metric that MLflow returned: its databases hold infinity as the largest number."""
    return math.copysign(math.inf, stored) if abs(stored) == sys.float_info.max else stored


def read_record(run: Any) -> JobRecord:
    """A job's record from an `mlflow.entities.Run`.

    Raises:
        HistoryError: the run was not written by `start_run`, or somebody has changed its parameters.
    """
    tags: Mapping[str, str] = run.data.tags
    params: Mapping[str, str] = run.data.params
    metrics: Mapping[str, float] = run.data.metrics
    try:
        return JobRecord(
            run_id=run.info.run_id,
            job_id=tags[TAG_JOB_ID],
            job_name=tags[TAG_JOB_NAME],
            team=tags["elastrec.team"],
            architecture=tags["elastrec.architecture"],
            phase=Phase(tags[TAG_PHASE]),
            reason=tags.get(TAG_REASON, ""),
            interval=(tags["elastrec.interval.start"], tags[TAG_INTERVAL_END]),
            asked=_sizes(params, "asked."),
            granted=(granted := _sizes(params, "granted.")),
            last=msgspec.json.decode(tags[TAG_SIZES], type=Sizes) if TAG_SIZES in tags else granted,
            features={name: float(params[param]) for name, param in _FEATURES.items()},
            labels={key.removeprefix(_LABEL): value for key, value in tags.items() if key.startswith(_LABEL)},
            metrics={name: metric_value(value) for name, value in metrics.items()},
            started_unix_seconds=run.info.start_time / 1000,
            ended_unix_seconds=run.info.end_time / 1000 if run.info.end_time else None,
            airflow_url=tags.get(TAG_AIRFLOW_URL, ""),
            log_url=tags.get(TAG_AIRFLOW_LOG, ""),
            prices=_prices(params),
            shape_changes=int(tags.get(TAG_SHAPE_CHANGES, 0)),
        )
    except (KeyError, ValueError, msgspec.MsgspecError) as error:
        raise HistoryError(f"run {run.info.run_id} is no job record: {type(error).__name__} {error}") from error


def _prices(params: Mapping[str, str]) -> PaidPrices | None:
    """Raises ValueError (pydantic's) where somebody has changed them to what no job file may say."""
    written = {key.removeprefix(_PRICES): value for key, value in params.items() if key.startswith(_PRICES)}
    return PaidPrices.model_validate(written) if written else None


def _sizes(params: Mapping[str, str], prefix: str) -> Sizes:
    return msgspec.convert({field: params[prefix + field] for field in Sizes.__struct_fields__}, Sizes, strict=False)
