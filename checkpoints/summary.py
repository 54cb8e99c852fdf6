"""The summary of a record's model, from which can be decided, without torch, whether a job can continue from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from pydantic import TypeAdapter, ValidationError

from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.specs.features import Steps
from elastrec.platform.specs.job import JobSpec, TrainingJob
from elastrec.platform.specs.optimizers import OptimizerKind, row_state

_STEPS: TypeAdapter[dict[str, Steps]] = TypeAdapter(dict[str, Steps])


class SegmentSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Adjacent numbers of a row with the same update rule; see RowSegment."""

    name: str
    width: int
    optimizer: OptimizerKind

    @property
    def state_width(self) -> int:
        return sum(width for _, width in row_state(self.optimizer, self.width))


class TableSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One embedding table: rows are `[rows, dimension]` float32; ids are taken modulo `hash_size` if it is set.

    Attributes:
        optimizer: of the embeddings.
        segments: empty in older records: one rule updates the whole row.
    """

    name: str
    dimension: int
    optimizer: OptimizerKind
    hash_size: int | None
    features: list[str]
    segments: list[SegmentSummary] = []

    @property
    def row_segments(self) -> list[SegmentSummary]:
        """The segments of its rows; their states follow one another, in the order of `row_state`."""
        return self.segments or [SegmentSummary(name="row", width=self.dimension, optimizer=self.optimizer)]


class Covering(NamedTuple):
    """A recorded segment.

    Attributes:
        column, state: its first value and its first state number in the row.
    """

    segment: SegmentSummary
    column: int
    state: int


def covering(recorded: Sequence[SegmentSummary], column: int, segment: SegmentSummary) -> Covering | None:
    """The recorded segment that holds the values of `segment`, which begins at `column`, and has its rule."""
    first, state = 0, 0
    for candidate in recorded:
        if first <= column and column + segment.width <= first + candidate.width:
            return Covering(candidate, first, state) if candidate.optimizer is segment.optimizer else None
        first += candidate.width
        state += candidate.state_width
    return None


class DenseSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One dense parameter of the network."""

    name: str
    shape: tuple[int, ...]


class ModelSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The trained state's outline.

    Attributes:
        options_json: the model's keyword arguments as JSON with sorted keys.
        dense_features, sparse_features: in the network's order, on which its weights depend.
        dense: empty until the network has been built.
        seed: of the rows' initial values.
        steps_json: the steps of all features with their fitted figures, see `steps_of`. Older records have only those
        in the job file, the oldest none.
    """

    architecture: str
    options_json: str
    dense_features: list[str]
    sparse_features: list[str]
    tables: list[TableSummary]
    dense_optimizer: OptimizerKind
    seed: int
    dense: list[DenseSummary] = []
    steps_json: str = ""

    def table(self, name: str) -> TableSummary | None:
        return next((table for table in self.tables if table.name == name), None)


def summarize(job: TrainingJob, dense: list[DenseSummary] | None = None) -> ModelSummary:
    """The summary of a job file's model; `dense` is known only after a worker has built the network."""
    return summarize_spec(job.spec, dense)


def summarize_spec(spec: JobSpec, dense: list[DenseSummary] | None = None) -> ModelSummary:
    """As `summarize`, of the spec of a job file."""
    features: dict[str, list[str]] = {}
    for feature in spec.data.sparse:
        features.setdefault(feature.table_name, []).append(feature.name)
    return ModelSummary(
        architecture=spec.model.architecture,
        options_json=msgspec.json.encode(spec.model.options, order="deterministic").decode(),
        dense_features=[feature.name for feature in spec.data.dense],
        sparse_features=[feature.name for feature in spec.data.sparse],
        tables=[
            TableSummary(
                name=name,
                dimension=spec.row_dimension(name),
                optimizer=spec.row_segments(name)[-1].rule.kind,
                hash_size=spec.table(name).hash_size,
                features=features[name],
                segments=[
                    SegmentSummary(name=segment.name, width=segment.width, optimizer=segment.rule.kind)
                    for segment in spec.row_segments(name)
                ],
            )
            for name in spec.data.tables
        ],
        dense_optimizer=spec.optimizers.dense.kind,
        seed=spec.training.seed,
        dense=list(dense or []),
        steps_json=_STEPS.dump_json(
            {feature.name: spec.data.all_steps(feature) for feature in spec.data.described_features}
        ).decode(),
    )


def steps_of(model: ModelSummary) -> dict[str, Steps]:
    """The steps of a recorded model's features, as `TrainingData.all_steps` gives them; see `ModelSummary`.

    Raises:
        CheckpointError: another version of elastrec has written them.
    """
    try:
        return _STEPS.validate_json(model.steps_json) if model.steps_json else {}
    except ValidationError as error:
        first = error.errors()[0]
        raise CheckpointError(
            f"the record's feature steps ({'.'.join(map(str, first['loc']))}: {first['msg']}) are not known to this "
            "version of elastrec; read the record with the version that wrote it, or start afresh "
            "(continual.start_from: nothing)"
        ) from error
