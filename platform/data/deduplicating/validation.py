"""What must hold of jagged arrays that come from elsewhere. Kept out of the hot path: call it at the border, once."""

from __future__ import annotations

import numpy as np

from elastrec.platform.data.deduplicating.deduplication import InverseJagged, Longs, row_codes
from elastrec.platform.data.deduplicating.partial import PartialJagged
from elastrec.platform.specs.errors import DataError


def check_offsets(offsets: Longs, values: int, where: str = "offsets") -> None:
    """Offsets begin at 0, never fall, and end where the values end.

    Raises:
        DataError: they do not; the message names the first wrong place.
    """
    if not len(offsets):
        raise DataError(f"{where}: no offset is not allowed; allowed: one more than there are rows")
    if offsets[0] != 0:
        raise DataError(f"{where}[0]: {offsets[0]} is not allowed; allowed: 0")
    falls = np.flatnonzero(np.diff(offsets) < 0)
    if len(falls):
        at = int(falls[0])
        raise DataError(
            f"{where}[{at + 1}]: {offsets[at + 1]} is not allowed; allowed: {offsets[at]} or more, as the offset before"
        )
    if offsets[-1] != values:
        raise DataError(
            f"{where}[{len(offsets) - 1}]: {offsets[-1]} is not allowed; allowed: {values}, the number of values"
        )


def check_inverse(group: InverseJagged, *, distinct: bool = False) -> None:
    """The group is well formed; with `distinct`, no two of its rows are equal.

    Raises:
        DataError: it is not.
    """
    if not group.keys or len(set(group.keys)) != len(group.keys):
        raise DataError(f"keys: {list(group.keys)} is not allowed; allowed: different names, at least one")
    check_offsets(group.offsets, len(group.values))
    if (len(group.offsets) - 1) % len(group.keys):
        raise DataError(
            f"offsets: {len(group.offsets)} are not allowed for {len(group.keys)} features; allowed: one more than a "
            "multiple of the number of features"
        )
    _check_lookup(group.inverse_lookup, group.distinct_rows)
    unused = np.flatnonzero(np.bincount(group.inverse_lookup, minlength=group.distinct_rows) == 0)
    if len(unused):
        raise DataError(f"inverse_lookup: no row uses the distinct row {unused[0]}; allowed: every one is used")
    if distinct:
        codes = np.stack([row_codes(*group.feature(key))[0] for key in group.keys])
        different = len(np.unique(codes, axis=1).T)
        if different != group.distinct_rows:
            raise DataError(
                f"values: {group.distinct_rows - different} of {group.distinct_rows} rows repeat another; "
                "allowed: distinct rows; build the group with deduplicate"
            )


def check_partial(feature: PartialJagged) -> None:
    """Every row lies within the values.

    Raises:
        DataError: one does not.
    """
    if feature.spans.ndim != 2 or feature.spans.shape[1] != 2:
        raise DataError(f"spans: the shape {feature.spans.shape} is not allowed; allowed: [rows, 2]")
    begins, lengths = feature.spans[:, 0], feature.spans[:, 1]
    # Compared this way round because a sum of the two could overflow.
    wrong = np.flatnonzero((begins < 0) | (lengths < 0) | (begins > len(feature.values) - lengths))
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"spans[{row}]: {feature.spans[row].tolist()} is not allowed; allowed: offset and length within the "
            f"{len(feature.values)} values"
        )


def _check_lookup(lookup: np.ndarray[tuple[int, ...], np.dtype[np.int32]], distinct_rows: int) -> None:
    wrong = np.flatnonzero((lookup < 0) | (lookup >= distinct_rows))
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"inverse_lookup[{row}]: {lookup[row]} is not allowed; allowed: 0 to {distinct_rows - 1}, the distinct rows"
        )
