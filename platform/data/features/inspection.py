"""inspect_steps: the results of each feature's steps on a sample, and the number of rows on which they run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from elastrec.platform.data.deduplicating.deduplication import distinct_in_batches, group_codes, jagged_parts
from elastrec.platform.data.entries import DataManifest
from elastrec.platform.data.features.columns import ignore_marks, read_column
from elastrec.platform.data.features.fitting import fit, unfitted_features, with_vocabularies
from elastrec.platform.data.features.plan import Reading, columns_of, plans_of
from elastrec.platform.data.features.steps import Column
from elastrec.platform.data.reading.batches import dense_of
from elastrec.platform.data.reading.numbers import combined
from elastrec.platform.data.reading.sample import read_sample
from elastrec.platform.specs.data import TrainingData


@dataclass(frozen=True)
class FeatureSteps:
    """One feature of a sample.

    Attributes:
        columns: its raw columns.
        steps: descriptions in order, including short forms and defaults, with their statistics.
        is_fitted: whether statistics of a step are fitted on the sample; a job fits them on its training rows.
        missing: share of rows without a value, or with an empty list, before any step; None of a cross.
        distinct_before: distinct values, of a list distinct elements, before any step; None of a cross, and of a
            feature that only uses missing marks.
        distinct: the same after the last step.
        rows: number of rows of the sample on which steps run: distinct rows of each batch if the feature is
            deduplicated, otherwise all.
    """

    name: str
    columns: tuple[str, ...]
    steps: tuple[str, ...]
    is_fitted: bool
    missing: float | None
    distinct_before: int | None
    distinct: int
    rows: int


def fitted_on_sample(data: TrainingData, manifest: DataManifest, rows: int) -> tuple[TrainingData, list[str]]:
    """The data section as from a job's preparation, and the features whose statistics were fitted on the given rows.

    Raises:
        DataError: as `with_vocabularies` and `fit`.
    """
    data = with_vocabularies(data)
    return fit(data, manifest, rows=rows), unfitted_features(data)


def sample_steps(data: TrainingData, manifest: DataManifest, rows: int) -> tuple[FeatureSteps, ...]:
    """`inspect_steps` of the first rows of a log whose repeats are not known.

    Raises:
        DataError: a row or file is unusable, or a step cannot be fitted.
    """
    data, unfitted = fitted_on_sample(data, manifest, rows)
    raw, encoded = read_sample(data, manifest, rows)
    return inspect_steps(data, raw, encoded, unfitted=unfitted, batch_rows=rows)


def inspect_steps(
    data: TrainingData,
    raw: pa.Table,
    encoded: pa.RecordBatch,
    *,
    unfitted: Collection[str] = (),
    groups: Sequence[Sequence[str]] = (),
    batch_rows: int,
) -> tuple[FeatureSteps, ...]:
    """Inspect a sample, feature by feature, in the order of the data.

    Args:
        data: fitted.
        raw, encoded: the same rows in the order of training, see `read_sample`.
        unfitted: features whose statistics were fitted on the sample.
        groups: features that are deduplicated together.
    """
    assert not unfitted_features(data)
    features = {feature.name: feature for feature in data.described_features}
    plans = plans_of(data, features)
    columns: dict[Reading, Column] = {}
    for plan in plans.values():
        for source in plan.sources:
            if isinstance(source, Reading):
                # Missing values are counted, so that they are not filled while reading.
                bare = replace(source, fill=None)
                if bare not in columns:
                    values = combined(raw[bare.column])
                    columns[bare] = read_column(values, bare, data.csv.list_separator, ignore_marks)
    rows_of: dict[str, int] = {}
    for group in groups:
        names = set(columns_of(plans, group))
        codes = [code for reading, column in columns.items() if reading.column in names for code in column.codes()]
        code_N, _ = group_codes(codes)
        rows_of |= dict.fromkeys(group, distinct_in_batches(code_N, batch_rows))
    dense_NI = dense_of(encoded)
    lines = []
    for index, (name, feature) in enumerate(features.items()):
        [source, *others] = plans[name].sources
        column = columns[replace(source, fill=None)] if isinstance(source, Reading) and not others else None
        if index < len(data.dense):
            after = dense_NI[:, index]
        else:
            after, _ = jagged_parts(encoded.column(name), name)
        lines.append(
            FeatureSteps(
                name=name,
                columns=tuple(columns_of(plans, [name])),
                steps=tuple(step.summary for step in data.all_steps(feature)),
                is_fitted=name in unfitted,
                missing=None if column is None else _missing_share(column),
                distinct_before=_distinct_before(column, source),
                distinct=len(np.unique(after)),
                rows=rows_of.get(name, raw.num_rows),
            )
        )
    return tuple(lines)


def _missing_share(column: Column) -> float:
    if column.offsets is not None:
        return float((np.diff(column.offsets) == 0).mean())
    return 0.0 if column.missing is None else float(column.missing.mean())


def _distinct_before(column: Column | None, source: Reading | str) -> int | None:
    if column is None or (isinstance(source, Reading) and source.kind == "presence"):
        return None
    return len(np.unique(column.values if column.missing is None else column.values[~column.missing]))
