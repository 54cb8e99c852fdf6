"""inspect_data: estimated savings of clustering and deduplication on a sample of a click log."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from elastrec.platform.data.clustering.clustering import (
    clustered_settings,
    dictionary_columns,
    row_groups,
    without_keys,
)
from elastrec.platform.data.clustering.sorting import ClusterKeys, session_numbers
from elastrec.platform.data.deduplicating.dedupe_factor import (
    FeatureFactor,
    FeatureSample,
    Proposal,
    feature_factor,
    feature_samples,
    measured_factor,
    propose,
)
from elastrec.platform.data.deduplicating.deduplicated_batch import deduplicate_batch
from elastrec.platform.data.deduplicating.stored_groups import Groups, without_repeats
from elastrec.platform.data.entries import DataManifest
from elastrec.platform.data.features.inspection import FeatureSteps, fitted_on_sample, inspect_steps
from elastrec.platform.data.features.plan import column_groups
from elastrec.platform.data.finished import ROW_GROUP_ROWS
from elastrec.platform.data.reading.numbers import combined
from elastrec.platform.data.reading.sample import read_sample
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError


@dataclass(frozen=True)
class Saving:
    """Bytes, or numbers, before and after."""

    before: int
    after: int

    @property
    def ratio(self) -> float:
        """The ratio of both; 1 for an empty sample."""
        return self.before / self.after if self.after else 1.0


@dataclass(frozen=True)
class DataFacts:
    """The properties of a sample.

    Attributes:
        rows, sessions: of the sample; sessions that exceed it are cut, which reduces the factors.
        session_sizes: rows per session → number of such sessions.
        features: sparse ones in the order of the data.
        steps: of all features, dense ones first.
        storage: compressed bytes of the job's columns, in order of the log and clustered, by the same writer.
        stored_once: compressed bytes clustered, and with each distinct row of the proposed groups stored once.
        sent: bytes of the sample's batches from reader to worker, plain and deduplicated.
        pooled: ids that the embedding layers pool, of features that are deduplicated and all others together.
    """

    rows: int
    sessions: int
    rows_without_session: int
    batch_rows: int
    session_sizes: dict[int, int]
    features: tuple[FeatureFactor, ...]
    steps: tuple[FeatureSteps, ...]
    proposal: Proposal
    storage: Saving
    stored_once: Saving
    sent: Saving
    pooled: Saving

    @property
    def samples_per_session(self) -> float:
        """Mean S of the sample; a row without a session is one of its own."""
        return self.rows / self.sessions if self.sessions else 0.0


def inspect_data(
    data: TrainingData,
    manifest: DataManifest,
    *,
    sample_rows: int = 200_000,
    batch_rows: int = 4_096,
    computed_pooling: frozenset[str] = frozenset(),
) -> DataFacts:
    """Inspect the first `sample_rows` rows of a manifest.

    Args:
        batch_rows: rows of a training batch; repeats are found within one batch only.
        computed_pooling: see `propose`; lists that the data pools by attention count as well.

    Raises:
        DataError: the data has no session column, a row or file is unusable, or a step cannot be fitted.
    """
    keys = ClusterKeys.of(data)
    for name, value in (("sample_rows", sample_rows), ("batch_rows", batch_rows)):
        if value < 1:
            raise DataError(f"{name}: {value} is not allowed; allowed: 1 and above")
    unknown = sorted(computed_pooling - {feature.name for feature in data.sparse})
    if unknown:
        raise DataError(
            f"computed_pooling: {unknown} is not allowed; allowed: {', '.join(each.name for each in data.sparse)}"
        )
    computed_pooling |= {*data.attention_features}
    data, unfitted = fitted_on_sample(data, manifest, sample_rows)
    raw, encoded = read_sample(data, manifest, sample_rows, keys.names)
    log = _order(raw, keys.names[1:])
    raw, encoded = raw.take(log), encoded.take(log)
    clustered = _order(raw, keys.names[:1])
    session_N = session_numbers(combined(raw[keys.session]).take(clustered))
    clustered_raw, clustered_rows = raw.take(clustered), encoded.take(clustered)
    log_order = np.argsort(np.asarray(clustered), kind="stable")
    samples = feature_samples(data, clustered_rows)
    factors = tuple(feature_factor(name, each, session_N, log_order, batch_rows) for name, each in samples.items())
    proposal = propose(factors, samples, batch_rows, computed_pooling=computed_pooling)
    plain_bytes, clustered_bytes, once_bytes = (
        _stored_bytes(raw, None, keys),
        _stored_bytes(clustered_raw, session_N, keys),
        _stored_bytes(clustered_raw, session_N, keys, without_keys(column_groups(data, proposal.groups), keys)),
    )
    sizes, counts = np.unique(np.bincount(session_N), return_counts=True)
    return DataFacts(
        rows=raw.num_rows,
        sessions=int(session_N[-1]) + 1,
        rows_without_session=raw[keys.session].null_count,
        batch_rows=batch_rows,
        session_sizes=dict(zip(sizes.tolist(), counts.tolist(), strict=True)),
        features=factors,
        steps=inspect_steps(
            data, clustered_raw, clustered_rows, unfitted=unfitted, groups=proposal.groups, batch_rows=batch_rows
        ),
        proposal=proposal,
        storage=Saving(plain_bytes, clustered_bytes),
        stored_once=Saving(clustered_bytes, once_bytes),
        sent=_sent(clustered_rows, proposal, batch_rows),
        pooled=_pooled(samples, proposal, batch_rows),
    )


def _order(raw: pa.Table, names: Sequence[str]) -> pa.Array:
    """Indexes of the rows sorted by the columns; a stable sort."""
    numbered = raw.select(names).append_column("__row", pa.array(np.arange(raw.num_rows)))
    return pc.sort_indices(numbered, sort_keys=[(name, "ascending", "at_end") for name in (*names, "__row")])


def _stored_bytes(rows: pa.Table, session_N: NDArray[np.int64] | None, keys: ClusterKeys, groups: Groups = ()) -> int:
    """Compressed size from the writer of `cluster`; with sessions, row groups end at the end of a session."""
    if session_N is None:
        bounds = [(a, min(a + ROW_GROUP_ROWS, rows.num_rows)) for a in range(0, rows.num_rows, ROW_GROUP_ROWS)]
    else:
        bounds = list(row_groups(pa.array(session_N), ROW_GROUP_ROWS))
    rows = rows.combine_chunks()
    parts = [rows.slice(begin, end - begin) for begin, end in bounds]
    if groups:
        parts = [without_repeats(part, groups) for part in parts]
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, parts[0].schema, **clustered_settings(dictionary_columns(parts[0]), keys)) as writer:
        for part in parts:
            writer.write_table(part, row_group_size=part.num_rows)
    return sink.tell()


def _sent(rows: pa.RecordBatch, proposal: Proposal, batch_rows: int) -> Saving:
    before = after = 0
    for begin in range(0, rows.num_rows, batch_rows):
        batch = rows.slice(begin, batch_rows)
        before += _wire_bytes(batch)
        after += _wire_bytes(deduplicate_batch(batch, proposal.groups))
    return Saving(before, after)


def _wire_bytes(batch: pa.RecordBatch) -> int:
    sink = pa.MockOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return int(sink.size())


def _pooled(samples: dict[str, FeatureSample], proposal: Proposal, batch_rows: int) -> Saving:
    before = after = 0.0
    chosen = {choice.name for choice in proposal.choices if choice.group >= 0}
    for name, sample in samples.items():
        numbers = int(sample.length_N.sum())
        before += numbers
        after += numbers / measured_factor(sample.code_N, sample.length_N, batch_rows) if name in chosen else numbers
    return Saving(int(before), math.ceil(after))
