"""Values that are passed between the steps of a job: small, frozen, convertible to and from JSON (for Airflow's
XCom)."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec

_DAY = timedelta(days=1)


class Interval(msgspec.Struct, frozen=True):
    """Half-open interval of days or hours of training, and the one after it of evaluation.

    ISO 8601 text, for example `2026-01-01T00:00:00+00:00`; without an offset from UTC it is a moment of the log's own
    time zone, `spec.data.timezone`. An empty `end` is one day after the start, an empty `evaluation_end` one day after
    the beginning of the evaluation.

    Attributes:
        evaluation_start: empty: evaluation begins at `end`.
    """

    start: str
    end: str = ""
    evaluation_end: str = ""
    evaluation_start: str = ""

    @property
    def evaluation_begin(self) -> str:
        """Of a resolved interval: the first moment of the evaluation."""
        return self.evaluation_start or self.end

    def resolved(self, timezone: str) -> Interval:
        """All moments, with the offsets of the log's time zone at these moments; no `evaluation_start` if it is `end`.

        Days are added as calendar days, which may have 23 or 25 hours.
        """
        zone = ZoneInfo(timezone)

        def moment(text: str) -> datetime:
            named = datetime.fromisoformat(text)
            return named.replace(tzinfo=zone) if named.tzinfo is None else named.astimezone(zone)

        start = moment(self.start)
        end = moment(self.end or (start + _DAY).isoformat())
        evaluation = moment(self.evaluation_start) if self.evaluation_start else end
        evaluation_end = moment(self.evaluation_end or (evaluation + _DAY).isoformat())
        begins_later = evaluation.isoformat() if evaluation != end else ""
        return Interval(start.isoformat(), end.isoformat(), evaluation_end.isoformat(), begins_later)

    def moments(self) -> tuple[datetime, datetime, datetime]:
        """`start`, `end` and `evaluation_end` of a resolved interval, each with its offset from UTC."""
        start, end, evaluation_end = (
            datetime.fromisoformat(text) for text in (self.start, self.end, self.evaluation_end)
        )
        return start, end, evaluation_end

    def in_words(self) -> str:
        """Of a resolved interval, for people."""
        begin = f"from {self.evaluation_start} " if self.evaluation_start else ""
        return f"{self.start} to {self.end}, evaluated {begin}to {self.evaluation_end}"


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """The result of all checks before a pod starts.

    Attributes:
        job_json: the job file as it will run (overrides applied).
        training_digest: of the training manifest.
        start_record: URI of the checkpoint record to continue from; empty if there is none.
        older_start_records: URIs of alternatives, in this order, if that record is damaged.
        start_positions: of the start record, if the job begins at them (see `master.resumption.start_positions`).
        start_note: for a job that starts from a periodic record: its position in the data and why, for people.
        untrained: partitions of the log between the rows of the start record and those of this job, which neither has
            trained, for people; empty if there are none.
        adaptation: what is kept, initialised again and dropped, as a table for people; empty without a start record.
        deduplication: a table of deduplicated features with reasons, for people; empty if it is off.
        fitted: a table of the figures of fitted or kept steps, for people; empty if there are none.
        page: where MLflow will show the job's run; empty if unknown, or if no server shows MLflow's pages.
        run_tags: further tags of the job's run in MLflow, for example the DAG run that started the job. An existing
            run loses those with an empty value.
    """

    job_id: str
    job_json: str
    interval: Interval
    training_manifest: str
    evaluation_manifest: str
    training_rows: int
    evaluation_rows: int
    training_digest: str = ""
    start_record: str = ""
    older_start_records: list[str] = []
    start_positions: str = ""
    start_note: str = ""
    untrained: str = ""
    adaptation: str = ""
    deduplication: str = ""
    fitted: str = ""
    page: str = ""
    run_tags: dict[str, str] = {}

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables for people that are not empty."""
        return tuple(table for table in (self.adaptation, self.fitted, self.deduplication) if table)


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """Start-up sizes and their source."""

    workers: int
    parameter_servers: int
    worker_cores: float
    worker_memory_bytes: int
    parameter_server_cores: float
    parameter_server_memory_bytes: int
    source: str


class Launched(msgspec.Struct, frozen=True, kw_only=True):
    """A job that exists in the cluster.

    Attributes:
        run_id, run_url: of its run in MLflow; empty if MLflow did not answer.
        allocation: the start-up sizes, for the description of a run that is created later.
        goes_on_from: URI of the job's own record from which this launch continues; empty if the job began or was
            already running.
        goes_on_at: samples that are in that record's model, each counted once per epoch, of `goes_on_of` samples; both
            are 0 without a record, and if its position is unknown.
        adaptation: what is kept of that record, initialised again and dropped, as a table for people; empty if all of
            it is kept.
        changed_since: settings in which the job, which was already running, differs from those that the caller names as
            its launch did, for people; empty: none.
    """

    job_id: str
    master_pod: str
    run_id: str
    run_url: str
    owner: str = ""
    allocation: Allocation | None = None
    goes_on_from: str = ""
    goes_on_at: int = 0
    goes_on_of: int = 0
    adaptation: str = ""
    changed_since: str = ""

    @property
    def goes_on_words(self) -> str:
        """The record from which this launch continues, and its position, for people; empty without a record."""
        position = f" at {self.goes_on_at:,} of {self.goes_on_of:,} samples" if self.goes_on_of else ""
        return f"{self.goes_on_from}{position}" if self.goes_on_from else ""


class ModelScore(msgspec.Struct, frozen=True):
    """Figures of one model on the evaluation rows; None if a figure is not defined, or not for the kind of label.

    Attributes:
        only_label: the label of all rows; None if they have several, or there are no rows.
    """

    auc: float | None
    normalized_entropy: float | None
    samples: int
    log_loss: float | None = None
    normalized_error: float | None = None
    only_label: float | None = None


class GateDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the candidate may become champion, and why.

    Attributes:
        head: the compared output; empty: the first one, with a binary label.
    """

    passed: bool
    reason: str
    candidate: ModelScore
    champion: ModelScore | None = None
    champion_version: str = ""
    model_uri: str = ""
    head: str = ""


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """The registered model's version; `is_champion` tells whether the alias was moved to it.

    Attributes:
        note: why a model that has passed the gate is not champion; otherwise empty.
    """

    name: str
    version: str
    is_champion: bool
    model_uri: str
    note: str = ""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The object that `elastrec run --output json` prints at the end; None if a figure is not defined."""

    run_id: str
    model_uri: str
    auc: float | None
    normalized_entropy: float | None
    samples_total: int
    samples_trained: int
    shards_total: int
    shards_done: int
    seconds: float
    pods: list[str]
    job_id: str = ""
    registered_model: str = ""
    version: str = ""
    is_champion: bool = False
    gate: str = ""
    run_url: str = ""
    log_loss: float | None = None
