"""choose_groups: the features that a job deduplicates, by the repeats within the batches of its workers.

Measured on a sample in the order of training: rows of a session are adjacent if they are in the files and the job has a
session column. Without clustering, rows hardly repeat within a batch, and no feature is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elastrec.platform.data.clustering.session_order import session_order
from elastrec.platform.data.clustering.sorting import session_numbers
from elastrec.platform.data.deduplicating.dedupe_factor import (
    FeatureFactor,
    Proposal,
    feature_factor,
    feature_samples,
    group_features,
    proposal_of,
    propose,
)
from elastrec.platform.data.entries import DataManifest
from elastrec.platform.data.reading.numbers import combined
from elastrec.platform.data.reading.sample import read_sample
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.deduplication import Deduplication
from elastrec.platform.specs.job import Training

_SAMPLE_ROWS = 65_536


@dataclass(frozen=True)
class ChosenGroups(Proposal):
    """Groups, none of them for no deduplication, and the measurements by which they were chosen.

    Attributes:
        rows, batch_rows: of the sample.
        factors: one per sparse feature, in the order of the data.
    """

    rows: int
    batch_rows: int
    factors: tuple[FeatureFactor, ...]

    def __str__(self) -> str:
        """A table for users."""
        chosen = sum(choice.group >= 0 for choice in self.choices)
        what = f"{chosen} features in {len(self.groups)} groups" if chosen else "off, no feature is worth it"
        lines = [
            f"Deduplication: {what}; measured on {self.rows:,} rows in the order of training, "
            f"batches of {self.batch_rows:,}"
        ]
        width = max(len(choice.name) for choice in self.choices)
        for factor, choice in zip(self.factors, self.choices, strict=True):
            place = f"group {choice.group}" if choice.group >= 0 else "plain"
            numbers = f"factor {factor.measured:6.2f}, predicted {factor.predicted:6.2f}"
            lines.append(f"  {choice.name:<{width}}  {place:<8}  {numbers}  {choice.why}")
        return "\n".join(lines)


def choose_groups(
    data: TrainingData,
    manifest: DataManifest,
    wanted: Deduplication,
    training: Training,
    *,
    computed_pooling: frozenset[str] = frozenset(),
) -> ChosenGroups:
    """Measure the first shard's rows and choose groups, or group the features in the job file.

    Args:
        wanted: not off.
        training: the batches and their order.
        computed_pooling: features that attention or a transformer pools (see `propose`).

    Raises:
        DataError: the session column is missing, or rows are unusable.
    """
    batch_rows = training.batch_size
    rows = min(manifest.rows, max(batch_rows, min(batch_rows * training.batches_per_shard, _SAMPLE_ROWS)))
    raw, encoded = read_sample(data, manifest, rows, [data.session] if data.session else [])
    place_N, session_N = _order(raw, data.session, training)
    ordered = encoded.take(pa.array(place_N))
    log_order = np.argsort(place_N)
    samples = feature_samples(data, ordered)
    factors = [feature_factor(name, each, session_N, log_order, batch_rows) for name, each in samples.items()]
    if wanted.is_auto:
        proposal = propose(factors, samples, batch_rows, computed_pooling=computed_pooling)
    else:
        groups = wanted.groups or group_features(list(wanted.named), samples, batch_rows)
        verbs = {name: "names it" if name in wanted.named else "leaves it out" for name in samples}
        proposal = proposal_of(groups, {name: f"the job file {verb}" for name, verb in verbs.items()})
    return ChosenGroups(proposal.groups, proposal.choices, raw.num_rows, batch_rows, tuple(factors))


def _order(raw: pa.Table, session: str | None, training: Training) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places of the rows in the order of training, and in that order the number of each row's session."""
    place_N = np.arange(raw.num_rows)
    if training.shuffle:
        place_N = np.random.default_rng(training.seed).permutation(raw.num_rows)
    if session is None:
        return place_N, np.arange(raw.num_rows)
    sessions = combined(raw[session])
    if training.shuffle:
        place_N = session_order([sessions], place_N)
    return place_N, session_numbers(sessions.take(pa.array(place_N)))
