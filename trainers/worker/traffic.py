"""The bytes of a minibatch between reader and worker, with and without deduplication.

Computed from the shapes of its tensors, for Arrow's layout; a request to Arrow itself would take a percent of a fast
step.
"""

from __future__ import annotations

from collections.abc import Collection

from elastrec.trainers.deduplication import DeduplicatedFeatures
from elastrec.trainers.worker.inputs import Inputs

_ID, _NUMBER, _PLACE = 8, 4, 4


def read_bytes(inputs: Inputs, list_features: Collection[str]) -> tuple[int, int]:
    """Bytes with deduplication, and without it.

    Args:
        list_features: features whose rows are lists; for all others, a row is one id.
    """
    rows = len(inputs.target_BT)
    sparse = inputs.sparse
    numbers = _NUMBER * (inputs.dense_BI.numel() + inputs.target_BT.numel())
    if not isinstance(sparse, DeduplicatedFeatures):
        plain = numbers + _ID * sparse.values().numel() + _PLACE * rows * _lists(sparse.keys(), list_features)
        return plain, plain
    found = would_be = numbers
    if sparse.plain is not None:
        lists = _lists(sparse.plain.keys(), list_features)
        found = would_be = numbers + _ID * sparse.plain.values().numel() + _PLACE * rows * lists
    for group in sparse.groups:
        ids = int((group.offsets.diff().view(len(group.keys), -1) @ group.row_counts).sum())
        would_be += _ID * ids + _PLACE * rows * _lists(group.keys, list_features)
        found += _ID * group.values.numel() + _PLACE * (len(group.keys) * group.distinct_rows + rows)
    return found, would_be


def _lists(names: Collection[str], list_features: Collection[str]) -> int:
    return sum(name in list_features for name in names)
