"""convert: writes any readable click log as Parquet partitions, with a check of every row.

Labels, numbers and 64-bit ids are written before any step, so that a job reads the result without parsing or hashing
text. A column that features read in several ways is written as in the log. `ConvertReport.data` is the data section for
the result; it keeps the encodings of ids for rows that a model of the job scores later. A user's transform is already
applied to the written rows, and must be applied to such rows, too.

The destination appears as a whole or not at all on a local file system; elsewhere `_converted.json` is written last.
"""

from __future__ import annotations

import math
import operator
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import groupby
from typing import Literal

import numpy as np
import pyarrow as pa
import structlog
from numpy.typing import NDArray

from elastrec.platform.data.entries import DataManifest
from elastrec.platform.data.features.written_columns import written_column
from elastrec.platform.data.files import errors_naming, join
from elastrec.platform.data.finished import ParquetFile, Progress, finished_report, staged_folder, write_report
from elastrec.platform.data.fractions import (
    check_fractions,
    check_row_counts,
    check_written_partitions,
    check_written_rows,
    first_rows,
    first_seconds,
)
from elastrec.platform.data.log_calendar import LogCalendar
from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.moments import refuse_without_time, seconds_column, times_of
from elastrec.platform.data.partitions import Partition
from elastrec.platform.data.reading.bad_rows import BadRowLedger
from elastrec.platform.data.reading.batches import targets_of
from elastrec.platform.data.reading.encode import RowEncoder
from elastrec.platform.data.reading.numbers import as_float64, combined
from elastrec.platform.data.reading.raw import RawReader
from elastrec.platform.specs.base import Spec
from elastrec.platform.specs.data import DENSE_COLUMN, CsvOptions, FileFormat, Partitioning, SparseFeature, TrainingData
from elastrec.platform.specs.errors import DataError
from elastrec.platform.specs.text.some import some

_log = structlog.get_logger()
RECORD_NAME = "_converted.json"
_NAMED = 5
_BUFFERED_ROWS = 1_048_576
_FIRST_DAY = date(2026, 1, 1)
_RULE = re.compile(r"^\s*(.+?)\s*(>=|<=|==|>|<)\s*([+-]?\d+(?:\.\d+)?)\s*$")
_COMPARE = {">=": operator.ge, "<=": operator.le, "==": operator.eq, ">": operator.gt, "<": operator.lt}


class ByTime(Spec):
    """A row goes to the day or hour of its timestamp in the log's time zone."""

    kind: Literal["time"] = "time"
    unit: Literal["day", "hour"] = "day"


class ByFractions(Spec):
    """The rows are divided into consecutive days by share.

    With `by_time`, the boundaries are quantiles of the timestamp, so that each day is later than the one before; rows
    of the same second stay together. Otherwise, they follow the order of the files. The sum of the fractions is 1, and
    each day gets rows.
    """

    kind: Literal["fractions"] = "fractions"
    fractions: tuple[float, ...] = (0.8, 0.2)
    by_time: bool = False
    start: date = _FIRST_DAY


class ByRows(Spec):
    """Consecutive days with a fixed number of rows each, in the order of the files."""

    kind: Literal["rows"] = "rows"
    rows: int
    start: date = _FIRST_DAY


Layout = ByTime | ByFractions | ByRows


class ConvertReport(Spec):
    """The report of a conversion; the content of `_converted.json`."""

    data: TrainingData
    source_digest: str
    source_fingerprint: str
    layout: Layout
    label_rule: str | None
    rows: int
    skipped_rows: int
    bytes: int
    partitions: dict[str, int]
    """Rows per partition."""


@dataclass(frozen=True)
class _Rule:
    column: str
    operator: str
    bound: float


@dataclass(frozen=True)
class _Piece:
    """Consecutive rows of the log: `table` has the columns of the good ones as they are written.

    `number_B`: their row numbers in the manifest. `bad_second_N`: timestamps of the bad rows that have one; None if the
    log has none.
    """

    table: pa.Table
    number_B: NDArray[np.int64]
    bad_second_N: NDArray[np.int64] | None


def convert(
    source: TrainingData,
    destination: str,
    *,
    layout: Layout,
    label_rule: str | None = None,
    progress: Progress | None = None,
) -> ConvertReport:
    """Convert a click log; a destination with the same conversion is left as it is.

    Args:
        source: text files may be compressed (.gz, .bz2, .zst, .lz4).
        label_rule: computes the label from a column, for example `rating >= 4`.

    Raises:
        DataError: a row or file is unusable, the layout or rule does not fit, or the destination contains other data.
    """
    rule = _parse_rule(source, label_rule)
    _check_layout(source, layout)
    # While reading, the rule's column replaces the label.
    reading = source if rule is None else source.model_copy(update={"label": rule.column})
    # Every row is checked anyway, with the label from the rule.
    manifest = build_manifest(reading, try_rows=False, allow_compressed_text=True)
    _check_last_day(layout, manifest.rows)
    if isinstance(layout, ByFractions):
        check_row_counts(layout.fractions, manifest.rows, layout.start)
    inputs = {
        "source_digest": manifest.digest,
        "source_fingerprint": manifest.schema_fingerprint,
        "layout": layout,
        "label_rule": label_rule,
    }
    existing = finished_report(
        destination, RECORD_NAME, ConvertReport, "converted", {**inputs, "data.timezone": source.timezone}
    )
    if existing is not None:
        return existing
    ledger = BadRowLedger(source.bad_rows)
    cuts = _cuts(source, reading, manifest, layout)
    with staged_folder(destination) as staging:
        pieces = _pieces(source, reading, manifest, rule, ledger, progress)
        writer = _Writer(staging)
        of_bad_rows = set[Partition]()
        for partitions, table in _assigned(source, layout, cuts, pieces, of_bad_rows):
            writer.add(partitions, table)
        writer.finish()
        if not writer.rows.total():
            raise DataError(f"{source.path}: all {ledger.rows} rows are bad, so there is nothing to write")
        if isinstance(layout, ByTime):
            if stray := check_written_partitions(writer.rows.keys(), of_bad_rows):
                names = some([str(partition) for partition in stray], _NAMED)
                _log.warning("bad rows far from all good ones skipped", partitions=names)
        else:
            _check_written_days(layout, manifest.rows, writer.rows)
        report = ConvertReport(
            data=converted_data(source, destination, layout),
            rows=writer.rows.total(),
            skipped_rows=ledger.rows,
            bytes=writer.bytes,
            partitions={partition.folder: rows for partition, rows in sorted(writer.rows.items())},
            **inputs,
        )
        write_report(staging, RECORD_NAME, report)
    return report


def rows_as_written(data: TrainingData, manifest: DataManifest, ledger: BadRowLedger) -> Iterator[pa.Table]:
    """The rows of a log with the columns and types that `convert` gives them, without bad ones, piece by piece.

    Raises:
        DataError: a row is bad and the job allows none, or a file cannot be read.
    """
    for piece in _pieces(data, data, manifest, None, ledger, None):
        yield piece.table


def _pieces(
    source: TrainingData,
    reading: TrainingData,
    manifest: DataManifest,
    rule: _Rule | None,
    ledger: BadRowLedger,
    progress: Progress | None,
) -> Iterator[_Piece]:
    encoder = RowEncoder(source)
    extra = [name for name in (source.timestamp, source.session) if name]
    timestamp = seconds_column(source)
    raw = RawReader(reading, manifest, encoder.readings, extra=extra)
    for file in manifest.files:
        if file.text is not None and source.transform is None:
            _check_keys(source, file.text.columns, file.uri)
    done = 0
    for piece in raw.read(0, manifest.rows):
        table, rows = piece.table, piece.table.num_rows
        if rule is not None:
            table = _with_label(source, table, rule)
        _check_keys(source, table.column_names, piece.file.uri)
        with errors_naming(piece.file.uri):
            read = encoder.read(table)
            encoded = encoder.finish(read)
        ledger.judge(piece, encoded)
        columns = _targets(source, table, encoded.batch)
        # Steps, a hash_size and the limit of a list's length belong to the reading job, not to the data.
        for name in encoder.feature_columns:
            columns[name] = written_column(combined(table[name]), name, read.columns, source.csv.list_separator)
        good_B, bad_seconds = ~encoded.bad_B, None
        if timestamp:
            times = times_of(source, table)
            # A row that is bad anyway needs none: a line with too few fields may end before it.
            refuse_without_time(source, table, piece, times.wrong_B & good_B)
            columns[timestamp] = pa.array(times.second_B)
            bad_seconds = times.second_B[~good_B & ~times.wrong_B]
        if source.session and source.session not in columns:
            columns[source.session] = combined(table[source.session])
        converted = pa.table(columns)
        if not good_B.all():
            converted = converted.filter(pa.array(good_B))
        yield _Piece(converted, done + np.flatnonzero(good_B), bad_seconds)
        done += rows
        if progress is not None:
            progress(done, manifest.rows)


def _targets(source: TrainingData, table: pa.Table, encoded: pa.RecordBatch) -> dict[str, pa.Array]:
    """Labels and weight as they are written; values of bad rows are arbitrary."""
    columns = {}
    for index, target in enumerate(source.targets):
        if target.kind == "binary":
            columns[target.name] = pa.array(targets_of(encoded)[:, index].astype(np.int8))
        else:
            columns[target.name] = pa.array(as_float64(combined(table[target.name]), target.name)[0])
    return columns


def _check_keys(source: TrainingData, columns: Sequence[str], uri: str) -> None:
    for field, column in (("data.timestamp", source.timestamp), ("data.session", source.session)):
        if column and column not in columns:
            raise DataError(f"{field}: {column!r} is not in {uri}; there are: {', '.join(columns)}; correct the name")


def _with_label(source: TrainingData, table: pa.Table, rule: _Rule) -> pa.Table:
    value_B, missing_B, wrong_B = as_float64(combined(table[rule.column]), rule.column)
    label_B = _COMPARE[rule.operator](value_B, rule.bound).astype(np.float64)
    index = table.schema.get_field_index(rule.column)
    return table.set_column(index, source.label, pa.array(label_B, mask=missing_B | wrong_B))


def _cuts(source: TrainingData, reading: TrainingData, manifest: DataManifest, layout: Layout) -> NDArray[np.int64]:
    """Row numbers or, with `by_time`, timestamps with which the second and later days of `ByFractions` begin.

    With `by_time`, needs 8 bytes of memory per row of the log.
    """
    if not isinstance(layout, ByFractions):
        return np.empty(0, np.int64)
    if not layout.by_time:
        return first_rows(layout.fractions, manifest.rows)
    assert source.timestamp is not None
    raw = RawReader(reading, manifest, RowEncoder(reading).readings, extra=[source.timestamp])
    seconds = []
    for piece in raw.read(0, manifest.rows):
        times = times_of(reading, piece.table)
        # Rows without a time are bad ones, or are refused when they are read again.
        seconds.append(times.second_B[~times.wrong_B])
    second_N = np.concatenate(seconds)
    if not len(second_N):
        first = next(iter(raw.read(0, 1)))
        refuse_without_time(reading, first.table, first, np.ones(first.table.num_rows, np.bool_))
    check_row_counts(layout.fractions, len(second_N), layout.start)
    return first_seconds(layout.fractions, second_N, layout.start)


def _assigned(
    source: TrainingData,
    layout: Layout,
    cuts: NDArray[np.int64],
    pieces: Iterator[_Piece],
    of_bad_rows: set[Partition],
) -> Iterator[tuple[list[tuple[Partition, NDArray[np.int64]]], pa.Table]]:
    """For each piece: its partitions with the indexes of their rows. By time, adds those of bad ones to a set."""
    timestamp = seconds_column(source)
    calendar = LogCalendar(source.timezone, _partitioning(layout))
    for piece in pieces:
        table, number_B = piece.table, piece.number_B
        if isinstance(layout, ByTime) and piece.bad_second_N is not None:
            of_bad_rows.update(calendar.partition(int(key)) for key in np.unique(calendar.keys_of(piece.bad_second_N)))
        if not table.num_rows:  # all of its rows are bad
            continue
        if isinstance(layout, ByTime):
            key_B = calendar.keys_of(np.asarray(combined(table[timestamp])))
        elif isinstance(layout, ByRows):
            key_B = number_B // layout.rows
        else:
            position_B = np.asarray(combined(table[timestamp])) if layout.by_time else number_B
            key_B = np.searchsorted(cuts, position_B, side="right")
        order = np.argsort(key_B, kind="stable")
        keys, begins = np.unique(key_B[order], return_index=True)
        chosen = [
            (
                calendar.partition(int(key))
                if isinstance(layout, ByTime)
                else Partition(layout.start + timedelta(days=int(key))),
                rows,
            )
            for key, rows in zip(keys, np.split(order, begins[1:]), strict=True)
        ]
        yield chosen, table


class _Writer:
    """Collects rows per partition and writes the largest ones as new files when too many are in memory."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._held: defaultdict[Partition, list[pa.Table]] = defaultdict(list)
        self._held_rows, self._parts, self.rows = Counter[Partition](), Counter[Partition](), Counter[Partition]()
        self.bytes = 0

    def add(self, partitions: list[tuple[Partition, NDArray[np.int64]]], table: pa.Table) -> None:
        for partition, index in partitions:
            part = table if len(partitions) == 1 else table.take(pa.array(index))
            self._held[partition].append(part)
            self._held_rows[partition] += part.num_rows
        while self._held_rows.total() > _BUFFERED_ROWS:
            self._flush(self._held_rows.most_common(1)[0][0])

    def finish(self) -> None:
        for partition in sorted(self._held):
            self._flush(partition)

    def _flush(self, partition: Partition) -> None:
        del self._held_rows[partition]
        # Columns that are written as in the log may have other types in other files of the log.
        for _, tables in groupby(self._held.pop(partition), operator.attrgetter("schema")):
            self._write(partition, pa.concat_tables(tables))

    def _write(self, partition: Partition, table: pa.Table) -> None:
        name = f"part-{self._parts[partition]:05d}.parquet"
        self._parts[partition] += 1
        file = ParquetFile(join(self._root, partition.folder, name), table.schema)
        try:
            file.write(table)
        except BaseException:
            file.discard()
            raise
        self.bytes += file.commit()
        self.rows[partition] += table.num_rows


def converted_data(source: TrainingData, destination: str, layout: Layout) -> TrainingData:
    """The data section of a job that reads converted rows."""
    return source.model_copy(
        update={
            "path": join(destination),
            "evaluation_path": None,
            "format": FileFormat.PARQUET,
            "partitioning": _partitioning(layout),
            "partition_folder": None,
            "include": (),
            # Rows to be scored may contain lists and missing values as in the source.
            "csv": CsvOptions(
                list_separator=source.csv.list_separator,
                null_tokens=() if source.format is FileFormat.PARQUET else source.csv.null_tokens,
            ),
            "timestamp": seconds_column(source) or None,
            "timestamp_unit": "seconds",
            "sparse": tuple(_converted_feature(feature) for feature in source.sparse),
            "transform": None,
        }
    )


def _partitioning(layout: Layout) -> Partitioning:
    return Partitioning(layout.unit) if isinstance(layout, ByTime) else Partitioning.DAY


def _converted_feature(feature: SparseFeature) -> SparseFeature:
    """The files contain ids; rows to be scored may have the types of the source."""
    if feature.encoding == "integer":
        return feature
    return feature.model_copy(update={"encoding": "integer", "raw_encoding": feature.encoding})


def _parse_rule(source: TrainingData, text: str | None) -> _Rule | None:
    if text is None:
        return None
    match = _RULE.match(text)
    if match is None:
        raise DataError(f"label rule: {text!r} is not allowed; allowed: a column, one of >= <= > < ==, and a number")
    if source.labels:
        raise DataError(f"label rule: {text!r} makes data.label; remove the rule, or data.labels")
    rule = _Rule(match[1], match[2], float(match[3]))
    if rule.column in {feature.name for feature in source.described_features}:
        raise DataError(
            f"label rule: the column {rule.column!r} is a feature, too, from which a model would read the label; "
            "remove it from data.dense and data.sparse"
        )
    return rule


def _check_layout(source: TrainingData, layout: Layout) -> None:
    if DENSE_COLUMN in {feature.name for feature in source.described_features}:
        raise DataError(f"feature name {DENSE_COLUMN!r} is reserved; rename the column")
    timed = isinstance(layout, ByTime) or (isinstance(layout, ByFractions) and layout.by_time)
    if timed and source.timestamp is None:
        raise DataError("data.timestamp: is needed to split by time; name the column of seconds since the epoch")
    if isinstance(layout, ByFractions):
        check_fractions(layout.fractions)
    if isinstance(layout, ByRows) and layout.rows < 1:
        raise DataError(f"rows: {layout.rows} is not allowed; allowed: 1 and above")


def _days(layout: ByFractions | ByRows, rows: int) -> int:
    return len(layout.fractions) if isinstance(layout, ByFractions) else math.ceil(rows / layout.rows)


def _check_last_day(layout: Layout, rows: int) -> None:
    if isinstance(layout, ByTime):
        return
    days = _days(layout, rows)
    # The end of the last day is a moment, too.
    most = (date.max - layout.start).days
    if days > most:
        raise DataError(f"start: {layout.start} with {days} days is not allowed; allowed: days until {date.max}")


def _check_written_days(layout: ByFractions | ByRows, rows: int, written: Counter[Partition]) -> None:
    """Refuses a day without good rows.

    Args:
        rows: of the log, bad ones included.
        written: rows per partition.
    """
    of_days = [written[Partition(layout.start + timedelta(days=day))] for day in range(_days(layout, rows))]
    if isinstance(layout, ByFractions):
        fractions = layout.fractions
        check_written_rows(lambda day: f"fractions: {fractions[day]:g}", of_days, layout.start, "fractions")
    else:
        check_written_rows(lambda _: f"rows: {layout.rows} per day", of_days, layout.start, "numbers of rows")
