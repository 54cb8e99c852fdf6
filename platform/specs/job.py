"""TrainingJob: everything one job needs, as the user writes it in a job file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from elastrec.platform.specs.base import Spec
from elastrec.platform.specs.data import IMPORT_PATH_PATTERN, ColumnName, TrainingData
from elastrec.platform.specs.deduplication import OFF, Deduplication, words_or_section
from elastrec.platform.specs.elasticity import SIZES, Elasticity, PaidPrices, in_words
from elastrec.platform.specs.optimizers import FIRST_ORDER_RULE, Optimizers, OptimizerSpec, RowSegment, row_segments
from elastrec.platform.specs.text.quantities import Cores, CoresOrNone, Memory, Seconds

API_VERSION: Literal["elastrec.io/v1alpha1"] = "elastrec.io/v1alpha1"
BUILT_IN_MODELS = ("wide_and_deep", "deepfm", "xdeepfm", "dcn_v2", "dlrm", "din", "bst", "mmoe", "two_tower")
FIRST_ORDER_MODELS = ("wide_and_deep", "deepfm", "xdeepfm")
"""Built-in models whose rows carry one more number in front: the wide (first-order) weight of the id."""

SEQUENCE_OPTIONS = {"din": "attention", "bst": "sequences"}
"""The option by which a built-in model names the features whose rows it pools itself."""

DEFAULT_TEAM = "default"
# 40 characters leave room for the date and the role that are appended to make a pod's name (63 in Kubernetes).
JobName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=40, examples=["click-dlrm"])]
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", max_length=63)]


def first_order_columns(architecture: str) -> int:
    """Leading numbers of a row that are the id's first-order weight: 1 for FIRST_ORDER_MODELS, else 0."""
    return int(architecture in FIRST_ORDER_MODELS)


class Metadata(Spec):
    """Who the job is and whose."""

    name: JobName
    """Names the job, its records in the checkpoint store and, unless `history` says otherwise, its registered model."""
    team: Label = DEFAULT_TEAM
    """Whose job it is: its share of the cluster, its priority when jobs are scaled, a tag of its run in MLflow."""
    labels: dict[str, Label] = Field(default_factory=dict)
    """Free tags; they become similarity features of the job's history."""


class ModelSpec(Spec):
    """Which network is trained."""

    architecture: Annotated[str, Field(examples=list(BUILT_IN_MODELS))]
    """`wide_and_deep`, `deepfm`, `xdeepfm`, `dcn_v2`, `dlrm`, `din`, `bst`, `two_tower`, `mmoe` for several labels, or
    `package.module:Class` of your own."""
    embedding_dimension: Annotated[int, Field(ge=1, le=1024)] = 16
    """Numbers per embedding row, of every table that names no `dimension` of its own. `wide_and_deep`, `deepfm` and
    `xdeepfm` add one: the id's first-order weight, which starts at zero and has an update rule of its own,
    `optimizers.first_order`."""
    initial_range: Annotated[float, Field(gt=0)] | None = None
    """Embeddings of all tables start uniform in ±initial_range; absent: 0.01, for `dlrm` 1 / sqrt(dimension)."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the model, for example the layer sizes."""
    unpooled_features: tuple[ColumnName, ...] = ()
    """Features whose rows a model of your own asks for one by one (`embedding_bag_collection.rows`) and pools itself;
    they are left out of what it gets pooled. Built-in models name theirs in their options."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """`bfloat16` computes the dense layers under autocast; parameters stay float32."""

    @field_validator("architecture")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in BUILT_IN_MODELS and not re.match(IMPORT_PATH_PATTERN, name):
            raise ValueError(f"{', '.join(BUILT_IN_MODELS)} or an import path such as my_package.models:MyModel")
        return name

    @model_validator(mode="after")
    def _pools_itself(self) -> ModelSpec:
        if self.unpooled_features and self.architecture in BUILT_IN_MODELS:
            option = SEQUENCE_OPTIONS.get(self.architecture)
            instead = f"name the features in options.{option}" if option else "this model pools all of its features"
            raise ValueError(f"unpooled_features only with a model of your own: {instead}")
        return self

    @property
    def sequence_features(self) -> tuple[str, ...]:
        """Features whose rows the model itself pools, by attention or a transformer, in the order of the job file."""
        if self.architecture not in BUILT_IN_MODELS:
            return self.unpooled_features
        named = self.options.get(SEQUENCE_OPTIONS.get(self.architecture, ""))
        if not isinstance(named, Mapping | list | tuple):
            return ()
        return tuple(name for name in named if isinstance(name, str))

    @property
    def row_dimension(self) -> int:
        """Numbers per row of tables without a dimension of their own; known without importing the model (servers have
        no torch)."""
        return self.embedding_dimension + self.first_order_columns

    @property
    def row_range(self) -> float:
        """Embeddings start uniform in ±row_range, in tables that say nothing else.

        Chosen by `python -m benchmarks initial_range`. DLRM multiplies rows with each other; trained for long it scores
        worse from small ones.
        """
        return self.initial_range or (self.row_dimension**-0.5 if self.architecture == "dlrm" else 0.01)

    @property
    def first_order_columns(self) -> int:
        """Leading numbers of a row that are the id's first-order weight and start at zero."""
        return first_order_columns(self.architecture)


class TableSpec(Spec):
    """What differs from the default for one embedding table."""

    dimension: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Numbers per embedding of this table; absent: `model.embedding_dimension`. For `wide_and_deep`, `dcn_v2`, `mmoe`,
    `two_tower`, and models of your own that say `takes_table_dimensions = True`. The other models combine embeddings
    number by number, so theirs have one dimension."""
    initial_range: Annotated[float, Field(gt=0)] | None = None
    """Rows of this table start uniform in ±initial_range; absent: as `model.initial_range` says."""
    hash_size: Annotated[int, Field(ge=1)] | None = None
    """Ids are taken modulo this; absent: the vocabulary grows without limit."""
    admit_after: Annotated[int, Field(ge=1, le=65_535)] = 1
    """A row is made at this many sightings of its id; until then its value is zero."""
    evict_after: Seconds | None = None
    """A row not seen for this long is dropped; absent: never."""
    optimizer: OptimizerSpec | None = None
    """The update rule of this table's embeddings; absent: `optimizers.rows`."""


class Consistency(Spec):
    """How workers wait for each other."""

    mode: Literal["async", "bsp", "ssp"] = "async"
    """`async`: nobody waits; `bsp`: all workers take a step together; `ssp`: the fastest waits for the slowest.

    A step of `bsp` keeps the size that the job file gives it, workers times batch size. While more workers train, their
    minibatches are smaller; while fewer do, a step takes more rounds.
    """
    staleness: Annotated[int, Field(ge=0, le=1000)] = 0
    """With `ssp`: how many steps the fastest worker may be ahead of the slowest."""

    @model_validator(mode="after")
    def _consistent(self) -> Consistency:
        if self.mode != "ssp" and self.staleness:
            raise ValueError(f"staleness {self.staleness} has a meaning only with mode ssp; remove it or set mode: ssp")
        return self


class Training(Spec):
    """How the rows are gone through."""

    batch_size: Annotated[int, Field(ge=1, le=1_048_576)] = 512
    """Samples per worker and step."""
    batches_per_shard: Annotated[int, Field(ge=1, le=100_000)] = 100
    """M of AntDT §V-C: a shard has batch_size * batches_per_shard samples."""
    epochs: Annotated[int, Field(ge=1, le=1000)] = 1
    """How often every training row is trained."""
    shuffle: bool = True
    """Shards, and rows inside a shard, in an order that follows from the seed; otherwise in that of the files."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Of the order of rows and of all initial values."""
    consistency: Consistency = Consistency()
    """How workers wait for each other."""
    overlap_pull: Literal["auto", True, False] = "auto"
    """Pull the embeddings and dense parameters of the next step while this step computes: both then lack this step's
    gradients. `auto`: while one worker trains, once the model has taken 500 steps; before, it changes too fast, and
    steps of several workers lack each other's gradients as it is. `true`: from the first step; `false`: never. With
    `bsp` pulls never overlap."""


class PodResources(Spec):
    """How many pods of a role, and the size of each."""

    count: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Pods of this role; master and evaluator are single."""
    cores: Cores = 1.0
    """Cores of each pod; thread counts follow it."""
    memory: Memory = 2 * 2**30
    """Memory of each pod. One that takes more is killed and replaced, by one with twice as much up to
    `scaling.maximum_ROLE_memory`; twice in a row at the same size without progress in between fails the job."""


class Resources(Spec):
    """Asked sizes per role."""

    master: PodResources = PodResources(cores=0.25, memory=512 * 2**20)
    """The pod that owns the job: shards, membership, phases."""
    worker: PodResources = PodResources()
    """The pods that compute gradients."""
    parameter_server: PodResources = PodResources()
    """The pods that hold the embedding rows and the dense parameters."""
    evaluator: PodResources = PodResources()
    """The pod that exports the model and scores the champion after training."""
    startup_cores: CoresOrNone = 1.0
    """What master, workers and servers may use of idle cores until they are ready to work, where that is more than
    their own cores: they load their libraries faster and train with what they were granted. 0: nothing."""
    virtual_buckets: Annotated[int, Field(ge=64, le=65_536)] = 256
    """Rows are spread over this many buckets, buckets over servers."""

    @field_validator("master", "evaluator")
    @classmethod
    def _single(cls, resources: PodResources) -> PodResources:
        if resources.count != 1:
            raise ValueError("count 1: a job has exactly one pod of this role; remove the field count")
        return resources

    @model_validator(mode="after")
    def _consistent(self) -> Resources:
        if self.parameter_server.count > self.virtual_buckets:
            raise ValueError(
                f"parameter_server.count {self.parameter_server.count} is above virtual_buckets "
                f"{self.virtual_buckets}; every server needs at least one bucket"
            )
        return self


class CheckpointSpec(Spec):
    """Where and how often the job's state is saved."""

    store: Annotated[str, Field(min_length=1, examples=["checkpoints", "s3://bucket/checkpoints"])] = "checkpoints"
    """Folder or URI of the records (`s3://`, `gs://`, `abfs://`, `webhdfs://`); relative ones lie in the platform's
    work folder."""
    interval: Seconds = 60.0
    """Between periodic records; 0 saves only at the end."""
    keep: Annotated[int, Field(ge=1, le=1000)] = 3
    """Complete periodic records kept per job; `keep_final` says what becomes of final ones. Where the newest is
    damaged, a job goes back to one of them."""
    deltas: Annotated[int, Field(ge=0, le=1000)] = 0
    """Periodic records in a row that hold only the rows that have changed since the record before, after each full one.
    They are smaller, but a damaged one makes those that build on it useless. Final records are always full."""
    delta_values: Literal["float32", "int8"] = "float32"
    """How values of rows stand in `deltas`: `int8` takes a quarter of the bytes and rounds each number to one of 255
    between the largest one of its row and its opposite. The job that trains does not notice; one that is restored from
    such a record goes on with rounded rows. What the optimizer keeps is never rounded."""
    memory: Memory | None = None
    """Memory of the node, beside that of each parameter server, into which its parts of records are copied first. They
    go to the store from there, and a server that is started again on the node restores them from there. On clusters
    without memory volumes (all but the node agent) it is part of the server's pod, and only a server that is started
    again in that pod restores from it. It takes twice what a server's rows take: the last record stays while the next
    one is copied. A part that is larger than half of it goes straight to the store. Absent: none."""
    keep_final: Annotated[int, Field(ge=3, le=100_000)] | None = None
    """Final records kept per job name, of all of its jobs: those of the latest data and those that were made last. A
    job that starts from an older one by its URI must not need it any more. Without a number all are kept."""


class Continual(Spec):
    """What the job starts from."""

    start_from: Literal["latest", "nothing"] | str = "latest"
    """`latest`: the newest final record of this job name; `nothing`: fresh; else the URI of a record. A periodic record
    on the same training files is continued at its positions: what it has trained is not trained again, and batch size,
    shards, epochs and seed must be those of the record. On other files, and of a final record, only the weights are
    taken."""
    resume: Literal["auto", "never"] = "auto"
    """What a job does that is launched again under the same run key after it failed or was stopped: `auto` goes on from
    its newest record, at that record's positions in the data; `never` starts anew with what `start_from` says, at the
    first row. A job whose model was published starts anew in any case."""
    on_mismatch: Literal["adapt", "refuse"] = "adapt"
    """When the job file changed: `adapt` keeps what fits and shows what is new or dropped, `refuse` stops."""


class FaultTolerance(Spec):
    """When something counts as dead, and how often it may die while the job makes no progress."""

    heartbeat_interval: Annotated[Seconds, Field(gt=0)] = 0.5
    """Between two heartbeats of a pod; longer where all pods together would give more than 150 a second."""
    heartbeat_timeout: Seconds = 15.0
    """A pod that was silent for this long is replaced."""
    start_timeout: Annotated[Seconds, Field(gt=0)] = 900.0
    """A pod that has run for this long without its process being ready to work is replaced."""
    master_timeout: Annotated[Seconds, Field(gt=0)] = 3600.0
    """A pod that no master of its job has answered for this long ends by itself, and with a server the rows that it
    holds. A master that is started again within that time finds its pods as they were."""
    lease: Annotated[Seconds, Field(gt=0)] = 120.0
    """A shard without progress for this long is given to another worker."""
    save_timeout: Annotated[Seconds, Field(gt=0)] = 1800.0
    """A save in which a server writes nothing at all for this long, or whose last step, the manifest, takes this long,
    hangs: the job trains on without it. Every section that a server has written begins the time anew, so the size of
    the model does not matter; what must fit is the slowest single step, the synchronisation of one server's whole part
    with its disk. Workers pause meanwhile."""
    restore_timeout: Annotated[Seconds, Field(gt=0)] = 1800.0
    """A server that has read nothing of the record that it restores for this long is replaced. Every section that it
    has read begins the time anew, and so does every error by which the store answers: a store that is away is waited
    for."""
    migration_timeout: Annotated[Seconds, Field(gt=0)] = 1800.0
    """A change of a running job's pods that gets no further for this long is taken back: no new pod gets ready, or no
    row is copied that was not copied before. The pods that work stay as they are. Once rows change hands it goes on
    instead. The time without a master does not count."""
    # A pod may wait 15 minutes for a node that is being made (`--max-node-provision-time` of the Kubernetes cluster
    # autoscaler), then 15 minutes until its process is ready (`start_timeout`), and nothing is wrong. Kubernetes calls
    # the same limit of a Deployment `progressDeadlineSeconds`; its 10 minutes know of no new nodes.
    shard_attempts: Annotated[int, Field(ge=1, le=100)] = 4
    """A shard is marked as poisoned when its workers failed this often in a row without getting further with it: the
    job fails and names it. What the cluster did to a worker does not count: see `pod_restarts`."""
    pod_restarts: Annotated[int, Field(ge=0, le=10_000)] = 20
    """How often the pod of one place may fail in a row while the job makes no progress; at one more the job fails.
    Progress clears the count: for workers, any of them acknowledged rows; for both roles, a record holds more trained
    rows than every record before it. A pod that the cluster took away (preempted, evicted, deleted, its node lost,
    killed from outside by SIGKILL or SIGTERM) did not fail; such losses in a row may be five times as many."""
    slow_pod_moves: Annotated[int, Field(ge=0, le=10_000)] = 2
    """How many slow workers and parameter servers, together, the job moves to other nodes, each once its successor has
    started there; 0: none. Slow is one that takes at least twice as long for a row as the others of its role (a
    worker to compute, a server to read and change it) until that has cost as much as a move does. A server that is
    alone is never slow."""


class Gate(Spec):
    """When a new model becomes champion."""

    head: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Which of the model's outputs is judged, by its label's name, or the one that the model gives it; absent: the
    first."""
    metric: Literal["auc", "normalized_entropy", "normalized_error"] = "normalized_entropy"
    """What is compared with the champion. For a label of kind `value` it must be `normalized_error`: mean squared error
    over that of always predicting the mean label."""
    tolerance: Annotated[float, Field(ge=0, le=1)] = 0.002
    """How much worse than the champion, on the same rows, is still accepted."""
    minimum_auc: Annotated[float, Field(ge=0, le=1)] = 0.5
    """A model below this never becomes champion. Without a meaning for a label of kind `value`."""


class HistorySpec(Spec):
    """Names in MLflow, how long a job waits for it, and what the job's resources cost."""

    experiment: Annotated[str, Field(min_length=1)] = "elastrec"
    """The experiment of the job's run."""
    registered_model: Annotated[str, Field(min_length=1)] | None = None
    """Default: the job's name."""
    launch_wait: Seconds = 30.0
    """A job that is to start waits so long for MLflow, then it starts without; its figures are delivered later."""
    publish_wait: Seconds = 1800.0
    """Evaluation and registration wait so long for MLflow; a later try goes on without training again."""
    prices: PaidPrices | None = None
    """What the team pays for cores and memory: the job's cost in money is then a metric of its run, and stands in its
    report and on the pages in Airflow. Absent: core-hours and GiB-hours alone."""


class JobSpec(Spec):
    """The body of a TrainingJob."""

    model: ModelSpec
    data: TrainingData
    training: Training = Training()
    deduplication: Annotated[Deduplication, Field(json_schema_extra=words_or_section)] = OFF
    """Look up and pool equal rows of a batch once. `auto` takes the features for which that pays; the rows of a session
    are then trained side by side, in the order of the files, and sessions are shuffled."""
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
        if self.faults.heartbeat_timeout <= 2 * self.faults.heartbeat_interval:
            raise ValueError(
                f"faults.heartbeat_timeout {self.faults.heartbeat_timeout}s must be more than twice "
                f"faults.heartbeat_interval {self.faults.heartbeat_interval}s"
            )
        return self

    @model_validator(mode="after")
    def _within_limits(self) -> JobSpec:
        for role, amount in SIZES.values():
            asked = getattr(getattr(self.resources, role), amount)
            least, most = self.scaling.limits(role, amount)
            for name, limit, is_beyond, remedy in (
                ("minimum", least, least is not None and asked < least, "lower the minimum"),
                ("maximum", most, most is not None and asked > most, "raise the maximum"),
            ):
                if limit is not None and is_beyond:
                    side = "above" if name == "minimum" else "below"
                    raise ValueError(
                        f"scaling.{name}_{role}_{amount} {in_words(amount, limit)} is {side} resources.{role}.{amount} "
                        f"{in_words(amount, asked)}, with which the job starts; {remedy} or change the size"
                    )
        return self

    @property
    def sequence_features(self) -> tuple[str, ...]:
        """Features whose rows servers do not pool: the model does, or attention."""
        return *self.model.sequence_features, *self.data.attention_features

    def table(self, name: str) -> TableSpec:
        """The settings of one table, defaults where the job file says nothing."""
        return self.tables.get(name, TableSpec())

    def embedding_dimension(self, table: str) -> int:
        """Numbers per embedding of a table."""
        return self.table(table).dimension or self.model.embedding_dimension

    def row_dimension(self, table: str) -> int:
        """Numbers per row of a table: the embedding, and the first-order weight where the model has one."""
        return self.embedding_dimension(table) + self.model.first_order_columns

    @property
    def first_order_rule(self) -> OptimizerSpec | None:
        """The rule of the rows' first-order weights; None: they have none."""
        return (self.optimizers.first_order or FIRST_ORDER_RULE) if self.model.first_order_columns else None

    def row_segments(self, table: str) -> tuple[RowSegment, ...]:
        """What the rows of a table are made of."""
        rows = self.table(table).optimizer or self.optimizers.rows
        return row_segments(self.row_dimension(table), rows, self.first_order_rule)


class TrainingJob(Spec):
    """One job file."""

    api_version: Literal["elastrec.io/v1alpha1"] = Field(default=API_VERSION, alias="apiVersion")
    """The version of this format."""
    kind: Literal["TrainingJob"] = "TrainingJob"
    """What the file describes."""
    metadata: Metadata
    spec: JobSpec

    @property
    def registered_model(self) -> str:
        return self.spec.history.registered_model or self.metadata.name
