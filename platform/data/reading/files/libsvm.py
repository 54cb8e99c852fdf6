"""libsvm (svmlight) text: `LABEL [qid:NUMBER] INDEX:VALUE INDEX:VALUE ...`, other indices in every row.

The columns are the label with its name in the job file, `qid`, the lists `indices` and `values`, and for each whole
number, such as `7`, the value of that index, which is empty if the row does not have it. The label -1 is read as 0 if
labels are binary. Text after `#` in a line is a comment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError
from elastrec.platform.specs.features import Cross

QID, INDICES, VALUES = "qid", "indices", "values"
_PAIR = r"^(?P<index>qid|\d{1,18}):(?P<value>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)$"
_LONGEST_WORD = 60


def libsvm_columns(data: TrainingData) -> list[str]:
    """The columns of a libsvm file for a job: those of every file, and the indices that the job names."""
    named = {feature.column_name for feature in data.described_features}
    for steps in data.features.values():
        named |= {name for step in steps if isinstance(step, Cross) for name in step.columns}
    indices = sorted((name for name in named if name.isdecimal()), key=int)
    return [data.label_columns[0].name, QID, INDICES, VALUES, *indices]


def parse_libsvm(
    block: bytes | memoryview, data: TrainingData, columns: Sequence[str]
) -> tuple[pa.Table, Mapping[int, tuple[str, str]]]:
    """Columns of whole lines, and what was found and expected in each unreadable line, whose label is null.

    Args:
        block: UTF-8.

    Raises:
        DataError: the text is no UTF-8.
    """
    try:
        text = bytes(block).decode()
    except UnicodeError as error:
        raise DataError(f"the text cannot be read as UTF-8 ({error}); write it again in UTF-8") from error
    lines = pa.array([line for line in text.split("\n") if line not in ("", "\r") and not line.startswith("#")])
    tokens = pc.utf8_split_whitespace(pc.utf8_trim_whitespace(pc.replace_substring_regex(lines, "#.*", "")))
    begins, flat = np.asarray(tokens.offsets)[:-1], tokens.flatten()
    is_pair = np.ones(len(flat), np.bool_)
    is_pair[begins] = False
    # A line without a word has one empty token: a missing label.
    label = pc.if_else(pc.equal(flat.take(pa.array(begins)), ""), None, flat.take(pa.array(begins)))
    row_L = np.repeat(np.arange(len(lines)), np.diff(np.asarray(tokens.offsets)))[is_pair]
    pair = flat.filter(pa.array(is_pair))
    parts = pc.extract_regex(pair, _PAIR)
    bad: dict[int, tuple[str, str]] = {}
    for place in np.flatnonzero(np.asarray(pc.is_null(parts))).tolist():
        word = repr(pair[place].as_py())[:_LONGEST_WORD]
        bad.setdefault(int(row_L[place]), (word, "INDEX:VALUE, a whole number and a number"))
    is_qid = np.asarray(pc.fill_null(pc.equal(parts.field("index"), QID), False))
    kept = ~is_qid & np.asarray(pc.is_valid(parts))
    row_K = row_L[kept]
    index_K = np.asarray(parts.field("index").filter(pa.array(kept)).cast(pa.int64()))
    value_K = np.asarray(parts.field("value").filter(pa.array(kept)).cast(pa.float64()))
    for row, index in _repeated(row_K, index_K):
        bad.setdefault(row, (f"the index {index} twice", "each index once"))
    if data.label_columns[0].kind == "binary":
        label = pc.if_else(pc.match_substring_regex(label, r"^-1(\.0*)?$"), "0", label)
    if bad:
        is_bad = np.zeros(len(lines), np.bool_)
        is_bad[list(bad)] = True
        label = pc.if_else(pa.array(is_bad), None, label)
    offsets = pa.array(np.searchsorted(row_K, np.arange(len(lines) + 1)).astype(np.int32))
    made: dict[str, pa.Array] = {}
    for name in columns:
        if name == INDICES:
            made[name] = pa.ListArray.from_arrays(offsets, pa.array(index_K))
        elif name == VALUES:
            made[name] = pa.ListArray.from_arrays(offsets, pa.array(value_K))
        elif name == QID:
            number = parts.field("value").filter(pa.array(is_qid)).cast(pa.float64())
            made[name] = _sparse(row_L[is_qid], np.asarray(number), len(lines))
        elif name.isdecimal():
            chosen = index_K == int(name)
            made[name] = _sparse(row_K[chosen], value_K[chosen], len(lines))
        else:
            made[name] = label
    return pa.table(made), bad


def _repeated(row_K: NDArray[np.int64], index_K: NDArray[np.int64]) -> list[tuple[int, int]]:
    """(row, index) of indices that are twice in a row."""
    if bool(((np.diff(row_K) > 0) | (np.diff(index_K) > 0)).all()):
        return []
    order = np.lexsort((index_K, row_K))
    same = (np.diff(row_K[order]) == 0) & (np.diff(index_K[order]) == 0)
    return [(int(row_K[k]), int(index_K[k])) for k in order[1:][same]]


def _sparse(row_K: NDArray[np.int64], value_K: NDArray[np.float64], rows: int) -> pa.Array:
    """A column [B] with these values in these rows, null in all others."""
    value_B, empty_B = np.zeros(rows), np.ones(rows, np.bool_)
    value_B[row_K], empty_B[row_K] = value_K, False
    return pa.array(value_B, mask=empty_B)
