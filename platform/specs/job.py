"""TrainingJob: the contents of a job file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from elastrec.platform.specs.base import Spec, require_json
from elastrec.platform.specs.data import ColumnName, TrainingData
from elastrec.platform.specs.deduplication import OFF, Deduplication, words_or_section
from elastrec.platform.specs.elasticity import LIMITED, Elasticity, PaidPrices, Resources, in_words, what_of
from elastrec.platform.specs.features import LARGEST_ID
from elastrec.platform.specs.optimizers import FIRST_ORDER_RULE, Optimizers, OptimizerSpec, RowSegment, row_segments
from elastrec.platform.specs.text.patterns import (
    IMPORT_PATH_PATTERN,
    REGISTERED_MODEL_PATTERN,
    JobName,
    Label,
    Location,
    not_blank,
)
from elastrec.platform.specs.text.quantities import Memory, Seconds, Timeout

API_VERSION: Literal["elastrec.io/v1alpha1"] = "elastrec.io/v1alpha1"
BUILT_IN_MODELS = ("wide_and_deep", "deepfm", "xdeepfm", "dcn_v2", "dlrm", "din", "bst", "mmoe", "two_tower")
FIRST_ORDER_MODELS = ("wide_and_deep", "deepfm", "xdeepfm")
"""Built-in models whose rows start with an additional number: the wide (first-order) weight of the id."""

SEQUENCE_OPTIONS = {"din": "attention", "bst": "sequences"}
"""The option in which the features are named whose rows a built-in model pools itself."""

DEFAULT_TEAM = "default"


def first_order_columns(architecture: str) -> int:
    """Number of first-order weights at the start of a row: 1 for FIRST_ORDER_MODELS, otherwise 0."""
    return int(architecture in FIRST_ORDER_MODELS)


class Metadata(Spec):
    """Name, team and labels of the job."""

    name: JobName
    """Name of the job, of its records in the checkpoint store and, unless `history` sets another one, of its registered
    model."""
    team: Label = DEFAULT_TEAM
    """The team that owns the job. It determines the share of the cluster and the priority when jobs are scaled, and is
    a tag of the run in MLflow."""
    labels: dict[Annotated[str, Field(min_length=1, max_length=200)], Label] = Field(default_factory=dict)
    """Tags of any meaning; they are used to find similar jobs in the history."""


class ModelSpec(Spec):
    """The network that is trained."""

    architecture: Annotated[str, Field(examples=list(BUILT_IN_MODELS))]
    """`wide_and_deep`, `deepfm`, `xdeepfm`, `dcn_v2`, `dlrm`, `din`, `bst`, `two_tower`, `mmoe` for several labels, or
    your own class as `package.module:Class`."""
    embedding_dimension: Annotated[int, Field(ge=1, le=1024)] = 16
    """Numbers per embedding row, for every table without `dimension`. `wide_and_deep`, `deepfm` and `xdeepfm` add one
    number: the id's first-order weight, which starts at zero and has a separate update rule,
    `optimizers.first_order`."""
    initial_range: Annotated[float, Field(gt=0)] | None = None
    """Embeddings of all tables are initialised uniformly in ±initial_range; absent: 0.01, for `dlrm` 1 /
    sqrt(dimension)."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the model, for example the layer sizes."""
    unpooled_features: tuple[ColumnName, ...] = ()
    """Features whose rows a model of your own requests unpooled (`embedding_bag_collection.rows`) and pools itself;
    they are not in the pooled embeddings. Built-in models have options for this."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """`bfloat16` computes the dense layers under autocast; parameters stay float32."""

    @field_validator("architecture")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in BUILT_IN_MODELS and not re.match(IMPORT_PATH_PATTERN, name):
            raise ValueError(f"{', '.join(BUILT_IN_MODELS)} or an import path such as my_package.models:MyModel")
        return name

    @field_validator("options")
    @classmethod
    def _survive_json(cls, options: dict[str, Any]) -> dict[str, Any]:
        # The job file reaches pods and records as JSON.
        require_json(options)
        return options

    @model_validator(mode="after")
    def _pools_itself(self) -> ModelSpec:
        if self.unpooled_features and self.architecture in BUILT_IN_MODELS:
            option = SEQUENCE_OPTIONS.get(self.architecture)
            instead = f"name the features in options.{option}" if option else "this model pools all of its features"
            raise ValueError(f"unpooled_features applies only to a model of your own: {instead}")
        return self

    @property
    def sequence_features(self) -> tuple[str, ...]:
        """Features whose rows the model pools itself, by attention or a transformer, in the order of the job file."""
        if self.architecture not in BUILT_IN_MODELS:
            return self.unpooled_features
        named = self.options.get(SEQUENCE_OPTIONS.get(self.architecture, ""))
        if not isinstance(named, Mapping | list | tuple):
            return ()
        return tuple(name for name in named if isinstance(name, str))

    @property
    def row_dimension(self) -> int:
        """Numbers per row of tables without their own dimension; computed without importing the model, because servers
        have no torch."""
        return self.embedding_dimension + self.first_order_columns

    @property
    def row_range(self) -> float:
        """Embeddings are initialised uniformly in ±row_range, in tables without their own range.

        Chosen by `python -m benchmarks initial_range`. DLRM multiplies rows with each other; in long training it scores
        worse if they start small.
        """
        return self.initial_range or (self.row_dimension**-0.5 if self.architecture == "dlrm" else 0.01)

    @property
    def first_order_columns(self) -> int:
        """Number of first-order weights at the start of a row, which start at zero."""
        return first_order_columns(self.architecture)


class TableSpec(Spec):
    """Settings of one embedding table that differ from the defaults."""

    dimension: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Numbers per embedding of this table; absent: `model.embedding_dimension`. For `wide_and_deep`, `dcn_v2`, `mmoe`,
    `two_tower`, and models of your own with `takes_table_dimensions = True`. The other models combine embeddings
    element by element, so all of their tables have the same dimension."""
    initial_range: Annotated[float, Field(gt=0)] | None = None
    """Rows of this table are initialised uniformly in ±initial_range; absent: `model.initial_range`."""
    hash_size: Annotated[int, Field(ge=1, le=LARGEST_ID)] | None = None
    """Ids are taken modulo this; absent: the vocabulary grows without limit."""
    admit_after: Annotated[int, Field(ge=1, le=65_535)] = 1
    """A row is created when its id has been seen this many times; until then its value is zero."""
    evict_after: Annotated[Seconds, Field(gt=0)] | None = None
    """A row whose id was not seen for this long is deleted; absent: never."""
    optimizer: OptimizerSpec | None = None
    """The update rule of this table's embeddings; absent: `optimizers.rows`."""


class Consistency(Spec):
    """How workers wait for each other."""

    mode: Literal["async", "bsp", "ssp"] = "async"
    """`async`: workers do not wait for each other; `bsp`: all workers take a step together; `ssp`: the fastest worker
    waits for the slowest.

    With `bsp`, the size of a step is always that of the job file, workers times batch size. While more workers train,
    their minibatches are smaller; while fewer workers train, a step takes more rounds.
    """
    staleness: Annotated[int, Field(ge=0, le=1000)] = 0
    """With `ssp`: the maximum number of steps by which the fastest worker may be ahead of the slowest."""

    @model_validator(mode="after")
    def _consistent(self) -> Consistency:
        if self.mode != "ssp" and self.staleness:
            raise ValueError(f"staleness {self.staleness} has a meaning only with mode ssp; remove it or set mode: ssp")
        return self


class Training(Spec):
    """Batches, epochs and order of the training rows."""

    batch_size: Annotated[int, Field(ge=1, le=1_048_576)] = 512
    """Samples per worker and step."""
    batches_per_shard: Annotated[int, Field(ge=1, le=100_000)] = 100
    """M of AntDT §V-C: a shard has batch_size * batches_per_shard samples."""
    epochs: Annotated[int, Field(ge=1, le=1000)] = 1
    """The number of times that every training row is trained."""
    shuffle: bool = True
    """Whether shards, and rows inside a shard, are in a pseudo-random order given by the seed; otherwise they are in
    the order of the files."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """The seed of the order of rows and of all initial values."""
    consistency: Consistency = Consistency()
    """How workers wait for each other."""
    overlap_pull: Literal["auto", True, False] = "auto"
    """Pull the embeddings and dense parameters of the next step while this step computes: both then lack this step's
    gradients. `auto`: while only one worker trains, and after the model's first 500 steps, because before that the
    model changes too fast, and steps of several workers already lack each other's gradients. `true`: from the first
    step, not with `bsp`; `false`: never. With `bsp`, pulls never overlap."""

    @model_validator(mode="after")
    def _consistent(self) -> Training:
        if self.overlap_pull is True and self.consistency.mode == "bsp":
            raise ValueError(
                "overlap_pull true is not possible with consistency.mode bsp, where every step needs the gradients of "
                "the step before it; set overlap_pull to auto or false, or choose another mode"
            )
        return self


class CheckpointSpec(Spec):
    """Where and how often the job's state is saved."""

    store: Annotated[Location, Field(examples=["checkpoints", "s3://bucket/checkpoints"])] = "checkpoints"
    """Folder or URI of the records (`s3://`, `gs://`, `abfs://`, `webhdfs://`); relative paths are in the platform's
    work folder."""
    interval: Seconds = 60.0
    """Time between periodic records; with 0 there is only a record at the end."""
    keep: Annotated[int, Field(ge=1, le=1000)] = 3
    """Number of complete periodic records that are kept per job (for final records see `keep_final`). If the newest is
    damaged, the job returns to an older one."""
    deltas: Annotated[int, Field(ge=0, le=1000)] = 0
    """Number of periodic records after each full record that contain only the rows that changed since the previous
    record. They are smaller, but if one is damaged, the following ones are unusable until the next full record. Final
    records are always full."""
    delta_values: Literal["float32", "int8"] = "float32"
    """Encoding of row values in `deltas`: `int8` takes a quarter of the bytes and rounds each number to one of 255
    values between ± the largest absolute value of its row. Training itself is not affected; a job that is restored from
    such a record continues with the rounded rows. Optimizer states are never rounded."""
    memory: Memory | None = None
    """Additional memory of the node, per parameter server, into which the server's parts of records are copied first.
    They are written to the store from there, and a server that is restarted on the node restores them from there. On
    clusters without memory volumes (all except the node agent), the memory belongs to the server's pod, and only a
    server that is restarted in that pod restores from it. It must be twice the size of a server's rows, because the
    last record is kept while the next one is copied. A part that is larger than half of the memory is written directly
    to the store. Absent: none."""
    keep_final: Annotated[int, Field(ge=3, le=100_000)] | None = None
    """Number of final records that are kept per job name: those of the latest data and those that were made last. Older
    records are deleted, even if a job was started from their URI, but a model that is not published keeps its record
    for a day. Absent: all are kept."""

    @model_validator(mode="after")
    def _consistent(self) -> CheckpointSpec:
        if self.deltas and not self.interval:
            raise ValueError(
                f"deltas {self.deltas} has a meaning only with periodic records; remove it or set interval above 0"
            )
        if self.delta_values != "float32" and not self.deltas:
            raise ValueError(
                f"delta_values {self.delta_values} has a meaning only with deltas above 0; remove it or set deltas"
            )
        return self


class Continual(Spec):
    """The record from which the job starts."""

    start_from: Annotated[Literal["latest", "nothing"] | str, AfterValidator(not_blank)] = "latest"
    """`latest`: the newest final record of this job name; `nothing`: no record; otherwise the URI of a record. With a
    periodic record of the same training files, the job continues at the record's positions: rows that are already
    trained are not trained again, and batch size, shards, epochs and seed must be those of the record. With other
    files, or with a final record, only the weights are used."""
    resume: Literal["auto", "never"] = "auto"
    """What happens when a job that failed or was stopped is launched again under the same run key: `auto` continues
    from its newest record, at that record's positions in the data; `never` starts again with `start_from`, at the first
    row. A job whose model was published always starts again."""
    on_mismatch: Literal["adapt", "refuse"] = "adapt"
    """If the job file has changed: `adapt` keeps the parts of the model that fit and shows what is new or dropped;
    `refuse` fails the launch."""


class FaultTolerance(Spec):
    """When a pod counts as dead, and how often pods may fail while the job makes no progress."""

    heartbeat_interval: Annotated[Seconds, Field(gt=0)] = 0.5
    """Time between two heartbeats of a pod; longer if all pods together would send more than 150 per second."""
    heartbeat_timeout: Timeout = 15.0
    """A pod without a heartbeat for this long is replaced. Like `lease` and `master_timeout`, more than twice
    `heartbeat_interval`."""
    start_timeout: Timeout = 900.0
    """A pod whose process is not ready to work after this time is replaced."""
    master_timeout: Timeout = 3600.0
    """A pod that gets no answer from a master of its job for this long ends by itself; the rows of a server are then
    lost. A master that is restarted within this time finds its pods unchanged."""
    lease: Timeout = 120.0
    """A shard without progress for this long is leased to another worker."""
    save_timeout: Timeout = 1800.0
    """A save is given up, and the job continues without it, if a server writes nothing for this long, or if the last
    step, the manifest, takes this long. Every section that a server has written restarts the time, so the limit does
    not depend on the size of the model. It must be longer than the slowest single step, which is the synchronisation of
    one server's whole part with its disk. Workers pause meanwhile."""
    restore_timeout: Timeout = 1800.0
    """A server that restores a record and reads nothing for this long is replaced. Every section that it has read
    restarts the time, and so does every error of the store: servers wait for a store that is not reachable."""
    migration_timeout: Timeout = 1800.0
    """A change of a running job's pods that makes no progress for this long is undone: no new pod becomes ready, and no
    further row is copied. The working pods stay as they are. Once the hand-over of rows has begun, the change is not
    undone. The time without a master does not count."""
    # A pod may wait 15 minutes for a new node (`--max-node-provision-time` of the Kubernetes cluster
    # autoscaler), then 15 minutes until its process is ready (`start_timeout`), without a failure. Kubernetes has the
    # same limit for a Deployment, `progressDeadlineSeconds`; its default of 10 minutes does not allow for new nodes.
    shard_attempts: Annotated[int, Field(ge=1, le=100)] = 4
    """A shard is marked as poisoned if its workers failed this often in a row without progress in the shard: the job
    fails and names the shard. Workers that the cluster ended do not count: see `pod_restarts`."""
    pod_restarts: Annotated[int, Field(ge=0, le=10_000)] = 20
    """How often a pod and its replacements may fail in a row while the job makes no progress; at the next failure the
    job fails. Progress resets the count: for workers, any worker acknowledged rows; for both roles, a record contains
    more trained rows than every record before it. A pod that the cluster ended (preempted, evicted, deleted, its node
    lost, killed from outside by SIGKILL or SIGTERM) did not fail; the limit for such losses in a row is five times as
    high."""
    slow_pod_moves: Annotated[int, Field(ge=0, le=10_000)] = 2
    """The maximum number of slow workers and parameter servers that the job moves to other nodes; 0: none. A pod is
    slow if it takes at least twice as long for a row as the others of its role (a worker to compute it, a server to
    read and update it), and is moved when that has cost as much as a move. A single server is never slow."""

    @model_validator(mode="after")
    def _several_heartbeats_fit(self) -> FaultTolerance:
        # Progress comes with heartbeats: otherwise every lease would expire during training. And one lost heartbeat
        # would end a pod whose master is well.
        for name in ("heartbeat_timeout", "lease", "master_timeout"):
            seconds = getattr(self, name)
            if seconds <= 2 * self.heartbeat_interval:
                raise ValueError(
                    f"{name} {seconds:g}s must be more than twice heartbeat_interval {self.heartbeat_interval:g}s"
                )
        return self


class Gate(Spec):
    """When a new model becomes champion."""

    head: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """The output of the model that is compared, by the name of its label or the name that the model gives it; absent:
    the first output."""
    metric: Literal["auc", "normalized_entropy", "normalized_error"] = "normalized_entropy"
    """The metric that is compared with the champion. For a label of kind `value` it must be `normalized_error`: the
    mean squared error divided by that of always predicting the mean label. If all evaluation rows have the same label,
    none of them is defined, and the model does not become champion."""
    tolerance: Annotated[float, Field(ge=0, le=1)] = 0.002
    """The accepted difference if the model is worse than the champion on the same rows. The model of an older day than
    the champion's must be better than the champion."""
    minimum_auc: Annotated[float, Field(ge=0, le=1)] = 0.5
    """A model with a lower AUC never becomes champion. Not used for a label of kind `value`."""


class HistorySpec(Spec):
    """Names in MLflow, how long a job waits for MLflow, and prices of the job's resources."""

    experiment: Annotated[str, Field(min_length=1, max_length=500), AfterValidator(not_blank)] = "elastrec"
    """The experiment of the job's run."""
    registered_model: Annotated[str, Field(max_length=250, pattern=REGISTERED_MODEL_PATTERN)] | None = None
    """Default: the job's name. MLflow allows neither `/` nor `:`."""
    launch_wait: Seconds = 30.0
    """A job waits this long for MLflow before it starts; then it starts without a run, and its figures are sent
    later."""
    publish_wait: Seconds = 1800.0
    """Evaluation and registration wait this long for MLflow; a later try continues without training again."""
    prices: PaidPrices | None = None
    """What the team pays for cores and memory. The job's cost in money is then a metric of its run, and is shown in its
    report and on the pages in Airflow. Absent: only core-hours and GiB-hours are shown."""


_TABLE_DEFAULTS = TableSpec()


class JobSpec(Spec):
    """The body of a TrainingJob."""

    model: ModelSpec
    data: TrainingData
    training: Training = Training()
    deduplication: Annotated[Deduplication, Field(json_schema_extra=words_or_section)] = OFF
    """Whether equal feature values of a batch are looked up and pooled only once. `auto` chooses the features for which
    this pays; the rows of a session are then trained together, in the order of the files, and sessions are shuffled."""
    optimizers: Optimizers = Optimizers()
    tables: dict[str, TableSpec] = Field(default_factory=dict)
    resources: Resources = Resources()
    checkpoint: CheckpointSpec = CheckpointSpec()
    continual: Continual = Continual()
    faults: FaultTolerance = FaultTolerance()
    gate: Gate = Gate()
    history: HistorySpec = HistorySpec()
    scaling: Elasticity = Elasticity()

    @model_validator(mode="after")
    def _consistent(self) -> JobSpec:
        unknown = sorted(set(self.tables) - set(self.data.tables))
        if unknown:
            raise ValueError(f"tables {unknown} belong to no sparse feature; known tables: {list(self.data.tables)}")
        features = [feature.name for feature in self.data.sparse]
        strange = [name for name in self.deduplication.named if name not in features]
        if strange:
            raise ValueError(f"deduplication names {strange}, which are no sparse features; known: {features}")
        if self.optimizers.first_order is not None and not self.model.first_order_columns:
            raise ValueError(
                f"optimizers.first_order: rows of {self.model.architecture} have no first-order weights, only those of "
                f"{', '.join(FIRST_ORDER_MODELS)} have; remove the section"
            )
        strange = [name for name in self.model.unpooled_features if name not in features]
        if strange:
            raise ValueError(
                f"model.unpooled_features names {strange}, which are no sparse features; known: {features}"
            )
        doubly = sorted({*self.model.sequence_features} & {*self.data.attention_features})
        if doubly:
            raise ValueError(
                f"{self.model.architecture} pools {doubly} itself; remove pooling: attention of these features, or do "
                "not name them in the model's section"
            )
        return self

    @model_validator(mode="after")
    def _within_limits(self) -> JobSpec:
        for role, amount in LIMITED:
            asked = getattr(getattr(self.resources, role), amount)
            least, most = self.scaling.limits(role, amount)
            for name, limit, is_beyond, remedy in (
                ("minimum", least, least is not None and asked < least, "lower the minimum"),
                ("maximum", most, most is not None and asked > most, "raise the maximum"),
            ):
                if limit is not None and is_beyond:
                    side = "above" if name == "minimum" else "below"
                    raise ValueError(
                        f"scaling.{name}_{what_of(role, amount)} {in_words(amount, limit)} is {side} "
                        f"resources.{role}.{amount} {in_words(amount, asked)}, with which the job starts; {remedy} or "
                        f"change the {'number' if amount == 'count' else 'size'}"
                    )
        return self

    @property
    def sequence_features(self) -> tuple[str, ...]:
        """Features whose rows are not pooled by the embedding collection, but by the model or by attention."""
        return *self.model.sequence_features, *self.data.attention_features

    @property
    def most_server_cores(self) -> float:
        """Cores that a parameter server may have without being started anew: the number of its locks is chosen for
        them when it starts."""
        return self.scaling.maximum_parameter_server_cores or self.resources.parameter_server.cores

    def table(self, name: str) -> TableSpec:
        """The settings of one table, with defaults for absent fields."""
        return self.tables.get(name, _TABLE_DEFAULTS)

    def embedding_dimension(self, table: str) -> int:
        """Numbers per embedding of a table."""
        return self.table(table).dimension or self.model.embedding_dimension

    def row_dimension(self, table: str) -> int:
        """Numbers per row of a table: the embedding, and the first-order weight if the model has one."""
        return self.embedding_dimension(table) + self.model.first_order_columns

    @property
    def first_order_rule(self) -> OptimizerSpec | None:
        """The rule of the rows' first-order weights; None: they have none."""
        return (self.optimizers.first_order or FIRST_ORDER_RULE) if self.model.first_order_columns else None

    def row_segments(self, table: str) -> tuple[RowSegment, ...]:
        """The segments of the rows of a table."""
        rows = self.table(table).optimizer or self.optimizers.rows
        return row_segments(self.row_dimension(table), rows, self.first_order_rule)


class TrainingJob(Spec):
    """One job file."""

    api_version: Literal["elastrec.io/v1alpha1"] = Field(default=API_VERSION, alias="apiVersion")
    """The version of this format."""
    kind: Literal["TrainingJob"] = "TrainingJob"
    """The kind of the file."""
    metadata: Metadata
    spec: JobSpec

    @property
    def registered_model(self) -> str:
        return self.spec.history.registered_model or self.metadata.name
