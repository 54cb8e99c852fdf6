"""MessageForm: rows of a click log as messages, MessagePack maps from column to value.

| column | value |
|---|---|
| binary label | 0 or 1 |
| label of kind `value` | a finite number |
| weight | a finite number from 0 on |
| timestamp column | whole seconds since the epoch, see `seconds_column` |
| session column | an integer or a text; all rows of a topic the same of the two |
| column of numbers | a finite number before any step; absent or nil: an empty field |
| column of ids | a signed 64-bit id, after encoding, before any step; absent or nil: an empty field |
| list column | a list of such values; absent: an empty list |

Unknown names are ignored, so that a service can log columns for several jobs. The key is the session as text in UTF-8,
decimal for integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa

from elastrec.platform.data.log_calendar import FIRST_SECOND, LAST_SECOND
from elastrec.platform.data.moments import seconds_column
from elastrec.platform.data.reading.encode import RowEncoder
from elastrec.platform.data.reading.numbers import combined
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError

_LARGEST_FLOAT32, _LARGEST_FLOAT64 = float(np.finfo(np.float32).max), float(np.finfo(np.float64).max)
# Infinities and NaN are outside: a job would refuse the row when its message cannot be corrected any more.
Number = Annotated[float, msgspec.Meta(ge=-_LARGEST_FLOAT64, le=_LARGEST_FLOAT64)]
Id = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Seconds = Annotated[int, msgspec.Meta(ge=FIRST_SECOND, le=LAST_SECOND)]
# Of each kind of label, and of weights: what a message may hold (infinities and NaN are outside), and its column.
_TARGETS: dict[str, tuple[Any, pa.DataType]] = {
    "binary": (Annotated[int, msgspec.Meta(ge=0, le=1)], pa.int8()),
    "value": (Annotated[float, msgspec.Meta(ge=-_LARGEST_FLOAT32, le=_LARGEST_FLOAT32)], pa.float64()),
    "weight": (Annotated[float, msgspec.Meta(ge=0, le=_LARGEST_FLOAT32)], pa.float64()),
}
_VALUES: dict[tuple[str, bool], tuple[Any, Any, pa.DataType]] = {
    ("numbers", False): (Number | None, None, pa.float64()),
    ("numbers", True): (list[Number], [], pa.list_(pa.float64())),
    ("ids", False): (Id | None, None, pa.int64()),
    ("ids", True): (list[Id], [], pa.list_(pa.int64())),
}
Row = Any
"""A row of `MessageForm.row`: a struct made for the job's columns."""


def _feature_types(data: TrainingData) -> dict[str, tuple[Any, Any, pa.DataType]]:
    """Of each column that features read: the value in a message, the value of an absent one, the column's type.

    Raises:
        DataError: features read one column in several ways, or only its missing marks.
    """
    ways: dict[str, set[tuple[str, bool]]] = {}
    for reading in RowEncoder(data).readings:
        kinds = ways.setdefault(reading.column, set())
        if reading.kind != "presence":
            kinds.add((reading.kind, reading.is_list))
    for column, kinds in ways.items():
        if len(kinds) != 1:
            how = " and ".join(sorted(kind for kind, _ in kinds)) or "for what is missing only"
            raise DataError(
                f"column {column!r}: read as {how}; allowed in a stream: as numbers or as ids, one of the two; log "
                "the value in two columns"
            )
    return {column: _VALUES[kinds.pop()] for column, kinds in ways.items()}


class MessageForm:
    """Encodes and decodes the rows of one data section; the columns are those that `convert` writes.

    Raises:
        DataError: the data section names no session or no timestamp column, or one of them is a list.
    """

    def __init__(self, data: TrainingData) -> None:
        for field, column in (("data.session", data.session), ("data.timestamp", data.timestamp)):
            if column is None:
                raise DataError(f"{field}: is absent; allowed: the name of a column; a stream needs both")
            if any(feature.column_name == column and feature.is_list for feature in data.sparse):
                raise DataError(f"{field}: {column!r} is a list; allowed: a column with one value per row")
        assert data.session is not None and data.timestamp is not None
        self.session, self.timestamp = data.session, seconds_column(data)
        targets = {name: _TARGETS[kind] for name, kind in data.targets}
        types: dict[str, tuple[Any, Any, pa.DataType]] = {
            **{name: (type_, msgspec.NODEFAULT, column) for name, (type_, column) in targets.items()},
            **_feature_types(data),
        }
        types[self.timestamp] = (Seconds, msgspec.NODEFAULT, pa.int64())
        session = Id if data.session in types else Id | str
        types[data.session] = (session, msgspec.NODEFAULT, pa.null())
        self.columns = tuple(types)
        self._kinds = {name: kind for name, (_, _, kind) in types.items()}
        # Fields of a struct need names that Python allows; those without a default are first.
        self._fields = {name: f"f{index}" for index, name in enumerate(types)}
        ordered = sorted(types, key=lambda name: types[name][1] is not msgspec.NODEFAULT)
        self._ordered = tuple(ordered)
        self._type = msgspec.defstruct(
            "Row",
            [(self._fields[name], *types[name][:2]) for name in ordered],
            rename={self._fields[name]: name for name in ordered},
            omit_defaults=True,
            gc=False,
        )
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(self._type)

    def messages(self, table: pa.Table) -> list[bytes]:
        """One message per row of a table with the columns that `convert` writes; no empty session or timestamp."""
        columns = [_values(combined(table[name])) for name in self._ordered]
        make, encode = self._type, self._encoder.encode
        return [encode(make(*values)) for values in zip(*columns, strict=True)]

    def row(self, message: bytes | None) -> Row:
        """The row of one message.

        Raises:
            DataError: it is not a row of this form; the message names the column.
        """
        if message is None:
            raise DataError("is no row: it has no value (a tombstone)")
        try:
            return self._decoder.decode(message)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise DataError(f"is no row: {error}") from error

    def session_of(self, row: Row) -> int | str:
        """The row's session."""
        session: int | str = getattr(row, self._fields[self.session])
        return session

    def schema(self, session: pa.DataType) -> pa.Schema:
        """The columns of `table` for sessions of this type, int64 or string."""
        return pa.schema({**self._kinds, self.session: session})

    def table(self, rows: Sequence[Row], session: pa.DataType) -> pa.Table:
        """Rows as columns, in the order and with the types of `convert`; their sessions are all of one type."""
        schema = self.schema(session)
        columns = [
            pa.array([getattr(row, self._fields[field.name]) for row in rows], field.type) for field in schema
        ]  # fmt: skip
        return pa.Table.from_arrays(columns, schema=schema)


def _values(column: pa.Array) -> list[Any]:
    """Python values; those of a list column without one Arrow scalar per id."""
    if not pa.types.is_list(column.type):
        return list(column.to_pylist())
    flat, bounds = np.asarray(column.values).tolist(), np.asarray(column.offsets).tolist()
    return [flat[begin:end] for begin, end in pairwise(bounds)]
