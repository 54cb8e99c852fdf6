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

from elastrec.platform.data.deduplicating.deduplication import InverseJagged, deduplicate
from elastrec.platform.specs.data import GROUP_PREFIX

_ORDER = b"elastrec.columns"


def deduplicate_batch(batch: pa.RecordBatch, groups: Sequence[Sequence[str]]) -> pa.RecordBatch:
    """Replace the columns of each group of sparse features; without groups the batch itself.

    Args:
        batch: trainer-ready rows, see `elastrec.platform.data.reading.encode`.
    """
    if not groups:
        return batch
    named = [name for group in groups for name in group]
    deduplicated = [deduplicate({name: batch.column(name) for name in group}) for group in groups]
    plain = batch.select([name for name in batch.schema.names if name not in named])
    return with_groups(plain, deduplicated, {field.name: pa.types.is_list(field.type) for field in batch.schema})


def with_groups(plain: pa.RecordBatch, groups: Sequence[InverseJagged], lists: Mapping[str, bool]) -> pa.RecordBatch:
    """A batch of plain columns and groups that are already deduplicated.

    Args:
        lists: names of all columns of the plain form, in their order, and whether they are lists of ids.
    """
    columns = {name: plain.column(name) for name in plain.schema.names}
    for index, group in enumerate(groups):
        columns[f"{GROUP_PREFIX}{index}"] = group.to_arrow()
    schema = pa.schema([pa.field(name, column.type) for name, column in columns.items()])
    metadata = {**(plain.schema.metadata or {}), _ORDER: json.dumps(dict(lists)).encode()}
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema.with_metadata(metadata))


def groups_of(batch: pa.RecordBatch) -> list[InverseJagged]:
    """The deduplicated groups of a batch, in order; none for a plain batch."""
    return [
        InverseJagged.from_arrow(batch.column(name)) for name in batch.schema.names if name.startswith(GROUP_PREFIX)
    ]


def plain_part(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns that are not deduplicated."""
    return batch.select([name for name in batch.schema.names if not name.startswith(GROUP_PREFIX)])


def expand_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The plain batch, with the original columns."""
    groups = groups_of(batch)
    if not groups:
        return batch
    metadata = dict(batch.schema.metadata)
    are_lists: dict[str, bool] = json.loads(metadata.pop(_ORDER))
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    for group in groups:
        values, offsets = group.expand()
        for k, key in enumerate(group.keys):
            bounds = offsets[k * group.rows : (k + 1) * group.rows + 1]
            part = pa.array(values[bounds[0] : bounds[-1]])
            starts = pa.array((bounds - bounds[0]).astype(np.int32))
            columns[key] = pa.ListArray.from_arrays(starts, part) if are_lists[key] else part
    arrays = [columns[name] for name in are_lists]
    return pa.RecordBatch.from_arrays(arrays, names=list(are_lists), metadata=metadata or None)
