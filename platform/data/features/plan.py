"""FeaturePlan: the columns and the steps of a feature, for `RowEncoder`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa

from elastrec.platform.data.features.steps import (
    MISSING_ID,
    Bucketize,
    Clip,
    FillNull,
    Hash,
    Keep,
    Log1p,
    MissingIndicator,
    Standardize,
    Step,
    Unfitted,
    Vocabulary,
)
from elastrec.platform.data.reading.ids import encode_ids
from elastrec.platform.specs import features as written
from elastrec.platform.specs.data import DenseFeature, SparseFeature, TrainingData
from elastrec.platform.specs.errors import DataError


@dataclass(frozen=True)
class Reading:
    """One way of reading a column.

    Attributes:
        kind: `presence` only distinguishes missing values.
        encoding, raw_encoding: of ids, as in SparseFeature.
        fill: replaces missing single values; None: they stay missing.
    """

    column: str
    kind: Literal["numbers", "ids", "presence"]
    encoding: str = "integer"
    raw_encoding: str | None = None
    is_list: bool = False
    fill: float | int | None = None


@dataclass(frozen=True)
class FeaturePlan:
    """The computation of one feature.

    Attributes:
        sources: one reading; of a cross two or more, or names of features whose ids are crossed.
        steps: after the crossing, if there is one.
    """

    sources: tuple[Reading | str, ...]
    steps: tuple[Step, ...]


def plans_of(data: TrainingData, names: Collection[str]) -> dict[str, FeaturePlan]:
    """The plans of these features and of those that they cross, by name.

    Raises:
        DataError: a vocabulary has a duplicate value, or one that is not an id in the feature's encoding.
    """
    features = {feature.name: feature for feature in data.described_features}
    plans: dict[str, FeaturePlan] = {}
    for name in names:
        plan = plans[name] = _plan(data, features[name])
        for source in plan.sources:
            if isinstance(source, str) and source not in plans:
                plans[source] = _plan(data, features[source])
    return plans


def columns_of(plans: dict[str, FeaturePlan], names: Collection[str]) -> list[str]:
    """The raw columns of these features, each once, in order."""
    columns: dict[str, None] = {}
    for name in names:
        for source in plans[name].sources:
            columns |= dict.fromkeys(columns_of(plans, [source]) if isinstance(source, str) else [source.column])
    return list(columns)


def column_groups(data: TrainingData, groups: Collection[Collection[str]]) -> tuple[tuple[str, ...], ...]:
    """The raw columns of groups of features, each in the first group that reads it; empty groups are omitted."""
    taken: set[str] = set()
    found = []
    for group in groups:
        columns = [name for name in columns_of(plans_of(data, group), group) if name not in taken]
        taken.update(columns)
        found.append(tuple(columns))
    return tuple(columns for columns in found if columns)


def _plan(data: TrainingData, feature: DenseFeature | SparseFeature) -> FeaturePlan:
    listed = data.all_steps(feature)
    if isinstance(feature, DenseFeature):
        reading = Reading(feature.column_name, _kind(listed, is_dense=True))
    elif listed and isinstance(listed[0], written.Cross):
        known = {each.name for each in data.sparse}
        sources = [
            name if name in known else Reading(name, "ids", feature.encoding, feature.raw_encoding)
            for name in listed[0].columns
        ]
        return FeaturePlan(tuple(sources), tuple(_runnable(step, feature) for step in listed[1:]))
    else:
        kind = _kind(listed, is_dense=False)
        reading = Reading(feature.column_name, kind, feature.encoding, feature.raw_encoding, feature.is_list)
    steps = [_runnable(step, feature) for step in listed]
    if not steps:
        # No step uses missing marks before missing values become an id of their own.
        reading = replace(reading, fill=MISSING_ID)
    elif isinstance(steps[0], FillNull) and not reading.is_list and reading.kind != "presence":
        # Filled while reading, which saves one pass.
        reading, steps = replace(reading, fill=steps[0].value), steps[1:]
    return FeaturePlan((reading,), tuple(steps))


def _kind(steps: written.Steps, *, is_dense: bool) -> Literal["numbers", "ids", "presence"]:
    if written.reads_presence_only(steps):
        return "presence"
    return "numbers" if written.kind_read(steps, is_dense=is_dense) is written.Kind.NUMBER else "ids"


def _runnable(step: written.FeatureStep, feature: DenseFeature | SparseFeature) -> Step:
    """The step with its values as ids or numbers."""
    match step:
        case written.FillNull():
            [value] = _values([step.value], feature)
            return FillNull(value)
        case written.MissingIndicator():
            return MissingIndicator(as_ids=isinstance(feature, SparseFeature))
        case written.Clip():
            return Clip(step.low, step.high)
        case written.Log1p():
            return Log1p()
        case written.Standardize():
            if step.mean is None or step.scale is None:
                return Unfitted(feature.name)
            return Standardize(step.mean, step.scale)
        case written.Bucketize():
            return Bucketize(step.boundaries)
        case written.Hash():
            return Hash(step.size, step.seed)
        case written.Vocabulary():
            if step.file is not None:
                return Unfitted(feature.name)
            other = len(step.values) if step.out_of_vocabulary is None else step.out_of_vocabulary
            return Vocabulary(tuple(int(value) for value in _values(step.values, feature)), other)
        case written.KeepFirst():
            return Keep(step.count, is_first=True)
        case written.KeepLast():
            return Keep(step.count)
    raise AssertionError(f"{step.step} is the first step of a plan")


def _values(values: Sequence[float | int | str], feature: DenseFeature | SparseFeature) -> list[float | int]:
    """Values of a step: texts become ids as those of the feature's column do, numbers stay.

    Raises:
        DataError: a text is not an id in the feature's encoding, or two values have one id.
    """
    texts = [value for value in values if isinstance(value, str)]
    if not texts or not isinstance(feature, SparseFeature):
        return [value for value in values if not isinstance(value, str)]
    encoding = feature.raw_encoding or feature.encoding
    ids, missing, wrong = encode_ids(pa.array(texts, pa.string()), encoding, feature.name)
    for index, text in enumerate(texts):
        if wrong[index] or missing[index]:
            raise DataError(
                f"data.features.{feature.name}: the value {text!r} is not allowed; allowed: values in the encoding "
                f"{encoding} of the column; correct the value, or the encoding"
            )
    places: dict[int, str] = {}
    for text, id_ in zip(texts, ids.tolist(), strict=True):
        if id_ in places:
            raise DataError(
                f"data.features.{feature.name}: the values {places[id_]!r} and {text!r} are not allowed together; "
                f"allowed: each value once, and they are one id in the encoding {encoding}; remove one of them"
            )
        places[id_] = text
    return list(places)
