"""The contents of a record, independent of the servers that wrote it: rows, optimiser state, counters, dense
parameters, marks.

Two records of the same state have equal digests, for any number of servers and any distribution of buckets. A later
record must continue an earlier one (`setbacks`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import xxhash

from elastrec.checkpoints import BucketRows, Record, SectionKind, chain_shares, open_record
from elastrec.trainers.parameter_server.records.recorded_marks import marks_of
from elastrec.trainers.parameter_server.serving.marks import StreamMarks

Array = np.ndarray[Any, Any]
Key = tuple[str, int]
"""Table and id."""
Columns = dict[str, Array]

KEYS, POSITIONS = "keys", "positions"


@dataclass
class Contents:
    """The contents of a record together with its bases.

    Attributes:
        rows: `versions`, `values` and `state` of each row, and its other fields.
        candidates: ids without a row: `sightings`, `versions`, `last_seen`.
        doubled: keys that a record contains twice.
        dense: by parameter, its arrays element by element: `value`, the optimiser's state and its `steps`.
        marks: the applied pushes of each virtual and each dense bucket.
        positions: the position in the training data, as stored in the record.
    """

    generation: int = 0
    rows: dict[Key, Columns] = field(default_factory=dict)
    candidates: dict[Key, Columns] = field(default_factory=dict)
    doubled: list[Key] = field(default_factory=list)
    dense: dict[str, Columns] = field(default_factory=dict)
    marks: dict[tuple[str, int], list[StreamMarks]] = field(default_factory=dict)
    positions: bytes = b""

    def digests(self) -> dict[str, str]:
        """xxh3-128 of each kind of thing: `keys`, each column of rows, candidates and dense parameters, and so on."""
        found = {
            KEYS: _digest(sorted(self.rows)),
            "marks": _digest(sorted(self.marks.items(), key=lambda item: item[0])),
            POSITIONS: _digest(self.positions),
        }
        for kind, held in (("rows", self.rows), ("candidates", self.candidates), ("dense", self.dense)):
            for column in sorted({name for columns in held.values() for name in columns}):
                arrays = [(key, columns[column].tobytes()) for key, columns in sorted(held.items(), key=_key)]
                found[f"{kind}: {column}"] = _digest(arrays)
        return found


def _key(item: tuple[Any, Any]) -> Any:
    return item[0]


def _digest(value: object) -> str:
    return xxhash.xxh3_128_hexdigest(msgspec.msgpack.encode(value))


def contents_of(uri: str) -> Contents:
    """Reads a whole record into memory.

    Raises:
        DamagedRecordError: the record or one of its bases is damaged.
    """
    record = open_record(uri)
    found = Contents(generation=record.manifest.generation, positions=record.positions())
    new: set[tuple[str, SectionKind, Key]] = set()
    for share in chain_shares(record.chain()):
        for rows in share.read():
            for key, columns in _entries(rows):
                if rows.kind is SectionKind.DELETED:
                    found.rows.pop(key, None)
                    found.candidates.pop(key, None)
                    continue
                if (share.record.uri, rows.kind, key) in new:
                    found.doubled.append(key)
                new.add((share.record.uri, rows.kind, key))
                if rows.kind is SectionKind.ROWS:
                    found.candidates.pop(key, None)
                    found.rows[key] = columns
                else:
                    found.candidates[key] = columns
    for parameter in record.manifest.model.dense:
        found.dense[parameter.name] = _dense(record, parameter.name)
    virtual = np.arange(record.manifest.virtual_buckets)
    dense = np.unique([bucket for part in record.manifest.parts for bucket in part.dense_buckets]).astype(np.int64)
    for marks in marks_of(record, virtual, dense, has_same_buckets=True):
        found.marks |= {("virtual", bucket): marks.streams for bucket in marks.buckets}
        found.marks |= {("dense", bucket): marks.streams for bucket in marks.dense_buckets}
    return found


def _entries(rows: BucketRows) -> Iterable[tuple[Key, Columns]]:
    columns = {name: column for name, column in rows.columns.items() if name not in ("ids", "tables")}
    for number, (row_id, table) in enumerate(zip(rows.columns["ids"], rows.columns["tables"], strict=True)):
        yield (rows.tables[table], int(row_id)), {name: np.array(column[number]) for name, column in columns.items()}


def _dense(record: Record, parameter: str) -> Columns:
    """Runs end where buckets of another server begin, so numbers of a run are repeated for each of its elements."""
    runs = sorted(record.dense_runs(parameter), key=lambda run: run[0])
    found: dict[str, list[Array]] = {}
    for _, arrays in runs:
        for name, array in arrays.items():
            found.setdefault(name, []).append(np.broadcast_to(array, arrays["value"].shape))
    return {name: np.concatenate([piece.ravel() for piece in pieces]) for name, pieces in found.items()}


def setbacks(before: Contents, after: Contents) -> list[str]:
    """One sentence for everything that a later record of the same generation lacks of an earlier one; for Adagrad.

    Training adds rows, raises versions, adds to Adagrad's sums, takes dense steps and applies pushes. It never undoes
    any of that, and rows that were not trained keep all of their bytes, even if they moved between servers.
    """
    assert before.generation == after.generation, "a rollback loses what came after its record"
    problems = []
    if lost := sorted(before.rows.keys() - after.rows.keys()):
        problems.append(f"{len(lost)} rows are gone, the first one is {lost[0]}")
    for key in sorted(before.rows.keys() & after.rows.keys()):
        old, new = before.rows[key], after.rows[key]
        if old["versions"] == new["versions"]:
            changed = sorted(name for name in old if old[name].tobytes() != new[name].tobytes())
            problems += [f"row {key} has another {name} under the same version" for name in changed]
        elif old["versions"] > new["versions"]:
            problems.append(f"row {key} went from version {old['versions']} back to {new['versions']}")
        elif (new["state"] < old["state"]).any():
            problems.append(f"row {key} has lost gradients: its sums were {old['state']}, and are {new['state']}")
    for name in sorted(before.dense):
        if name not in after.dense or (after.dense[name]["steps"] < before.dense[name]["steps"]).any():
            problems.append(f"dense parameter {name} has lost steps")
    for bucket, streams in sorted(before.marks.items(), key=_key):
        if not _covers(after.marks.get(bucket, []), streams):
            problems.append(f"{bucket[0]} bucket {bucket[1]} has forgotten pushes that were applied")
    return problems


def _covers(after: list[StreamMarks], before: list[StreamMarks]) -> bool:
    """Whether every push that is in a bucket is still in it."""
    later = {stream.stream: stream for stream in after}
    for stream in before:
        now = later.get(stream.stream)
        if now is None or not all(_has(now, number) for number in _whole(stream)):
            return False
        if any(now.offsets.get(n, -1) < offset and not _has(now, n) for n, offset in stream.offsets.items()):
            return False
    return True


def _whole(stream: StreamMarks) -> list[int]:
    bits = np.unpackbits(np.frombuffer(stream.whole, np.uint8), bitorder="little")
    return [*range(stream.whole_below), *(stream.whole_below + np.flatnonzero(bits)).tolist()]


def _has(stream: StreamMarks, number: int) -> bool:
    place = number - stream.whole_below
    return place < 0 or (place < 8 * len(stream.whole) and bool(stream.whole[place >> 3] >> (place & 7) & 1))
