"""A record batch with deduplicated feature groups, for sending to the worker or for storage.

The columns of a group become one column `deduplicated:0`, `deduplicated:1`, ... of type
dictionary<int32, struct<feature: list>>: Arrow sends the distinct rows once and 4 bytes per row. The schema's metadata
contains the original order of the columns, so that `expand_batch` returns the same batch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from elastrec.platform.data.deduplicating.deduplication import InverseJagged, check_groups, deduplicate
from elastrec.platform.data.reading.encode import DENSE, LABEL
from elastrec.platform.specs.errors import DataError

PREFIX = "deduplicated:"
_ORDER = b"elastrec.columns"
_TRAINER_READY = (pa.int64(), pa.list_(pa.int64()), pa.large_list(pa.int64()))


def deduplicate_batch(batch: pa.RecordBatch, groups: Sequence[Sequence[str]]) -> pa.RecordBatch:
    """Replace the columns of each group; without groups the batch itself.

    Raises:
        DataError: a group is empty, names a column twice, an unknown one, label or dense, or one that is not a
        trainer-ready column.
    """
    if not groups:
        return batch
    named = [name for group in groups for name in group]
    allowed = [name for name in batch.schema.names if name not in (LABEL, DENSE) and not name.startswith(PREFIX)]
    check_groups(groups, allowed)
    for name in named:
        kind = batch.schema.field(name).type
        if kind not in _TRAINER_READY:
            raise DataError(
                f"feature {name!r}: {kind} is not allowed; allowed: int64 or a list of it; encode the rows first"
            )
    deduplicated = [deduplicate({name: batch.column(name) for name in group}) for group in groups]
    plain = batch.select([name for name in batch.schema.names if name not in named])
    return with_groups(plain, deduplicated, {name: str(batch.schema.field(name).type) for name in batch.schema.names})


def with_groups(plain: pa.RecordBatch, groups: Sequence[InverseJagged], kinds: Mapping[str, str]) -> pa.RecordBatch:
    """A batch of plain columns and groups that are already deduplicated.

    Args:
        kinds: names and Arrow types of all columns of the plain form, in their order.
    """
    columns = {name: plain.column(name) for name in plain.schema.names}
    for index, group in enumerate(groups):
        columns[f"{PREFIX}{index}"] = group.to_arrow()
    schema = pa.schema([pa.field(name, column.type) for name, column in columns.items()])
    metadata = {**(plain.schema.metadata or {}), _ORDER: json.dumps(dict(kinds)).encode()}
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema.with_metadata(metadata))


def groups_of(batch: pa.RecordBatch) -> list[InverseJagged]:
    """The deduplicated groups of a batch, in order; none for a plain batch."""
    return [InverseJagged.from_arrow(batch.column(name)) for name in batch.schema.names if name.startswith(PREFIX)]


def plain_part(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns that are not deduplicated."""
    return batch.select([name for name in batch.schema.names if not name.startswith(PREFIX)])


def expand_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The plain batch, with the original columns.

    Raises:
        DataError: the batch has groups, but no record of its original columns.
    """
    names = [name for name in batch.schema.names if name.startswith(PREFIX)]
    if not names:
        return batch
    metadata = dict(batch.schema.metadata or {})
    if _ORDER not in metadata:
        raise DataError(f"batch: its schema has no {_ORDER.decode()}; allowed: what deduplicate_batch made")
    kinds: dict[str, str] = json.loads(metadata.pop(_ORDER))
    columns = {name: batch.column(name) for name in batch.schema.names if not name.startswith(PREFIX)}
    for group in groups_of(batch):
        values, offsets = group.expand()
        for k, key in enumerate(group.keys):
            bounds = offsets[k * group.rows : (k + 1) * group.rows + 1]
            part = pa.array(values[bounds[0] : bounds[-1]])
            columns[key] = _column(part, bounds - bounds[0], kinds[key])
    arrays = [columns[name] for name in kinds]
    schema = pa.schema([pa.field(name, array.type) for name, array in zip(kinds, arrays, strict=True)])
    return pa.RecordBatch.from_arrays(arrays, schema=schema.with_metadata(metadata or None))


def _column(values: pa.Array, offsets: np.ndarray[tuple[int], np.dtype[np.int64]], kind: str) -> pa.Array:
    if kind.startswith("list"):
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values)
    if kind.startswith("large_list"):
        return pa.LargeListArray.from_arrays(pa.array(offsets), values)
    return values
