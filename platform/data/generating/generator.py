"""generate: click logs of any size with known click probabilities; the same seed gives the same bytes.

Rows are in order of time and belong to sessions of one user. Ids follow Zipf's law over vocabularies that grow by
Heaps' law V(n) = k * n^b with the number n of rows so far. Labels are drawn with the probabilities of a `Teacher`, so
that the best possible AUC and normalised entropy are known. They are measured on the written labels and are, with the
spec, in `_generated.json` beside the partitions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import date, timedelta
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from elastrec.platform.data import finished
from elastrec.platform.data.files import join
from elastrec.platform.data.generating.clicks import ClickMaker, Clicks
from elastrec.platform.data.generating.writers import PartitionWriter
from elastrec.platform.data.log_calendar import LogCalendar
from elastrec.platform.data.metrics.binary import BinaryMetricsSketch
from elastrec.platform.data.partitions import Partition
from elastrec.platform.specs.base import Spec
from elastrec.platform.specs.data import (
    DenseFeature,
    FileFormat,
    LabelColumn,
    Partitioning,
    SparseFeature,
    TrainingData,
)
from elastrec.platform.specs.errors import DataError
from elastrec.platform.specs.text.patterns import Location
from elastrec.platform.specs.text.problems import FieldError
from elastrec.platform.specs.text.some import counted

CHUNK_ROWS = 65_536
RECORD_NAME = "_generated.json"


class GenerateSpec(Spec):
    """What to generate."""

    path: Location
    start: date = date(2026, 1, 1)
    days: Annotated[int, Field(ge=1, le=10_000)] = 2
    rows_per_day: Annotated[int, Field(ge=1, le=10**10)] = 1_000_000
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    format: FileFormat = FileFormat.PARQUET
    partitioning: Literal[Partitioning.DAY, Partitioning.HOUR] = Partitioning.DAY
    dense: Annotated[int, Field(ge=0, le=1000)] = 13
    sparse: Annotated[int, Field(ge=1, le=1000)] = 26
    """Scalar categories: a third describes the user, a third the item, the others the context."""
    lists: Annotated[int, Field(ge=0, le=20)] = 1
    """List features: the user's history."""
    list_length: Annotated[int, Field(ge=1, le=1000)] = 8
    """Mean length of a list."""
    zipf_exponent: Annotated[float, Field(gt=0, le=3)] = 1.0
    heaps_factor: Annotated[float, Field(gt=0, le=1e6)] = 4.0
    heaps_exponent: Annotated[float, Field(gt=0, le=1)] = 0.6
    session_length: Annotated[float, Field(ge=1, le=1000)] = 4.0
    """Mean rows of a session."""
    session_seconds: Annotated[float, Field(ge=0)] = 30.0
    """Mean time between a session's beginning and its rows; the longer, the more sessions interleave in the log."""
    click_rate: Annotated[float, Field(gt=0, lt=1)] = 0.25
    best_auc: Annotated[float, Field(gt=0.5, lt=0.99)] = 0.80
    """AUC of a model that knows the click probabilities."""
    conversion_rate: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of clicks that are followed by a conversion (column `conversion`, 0 without a click); absent: no column."""
    drift_radians: Annotated[float, Field(ge=0, le=3.2)] = 0.05
    """Rotation of the teacher's weights per day."""
    delay_seconds: Annotated[float, Field(ge=0)] = 1800.0
    """Mean time from impression to click (column `label_delay_seconds`)."""
    labels: Literal["final", "observed"] = "final"
    """`observed`: a click that comes after its partition's end is written as 0."""
    rows_per_file: Annotated[int, Field(ge=1)] = 4_194_304

    @model_validator(mode="after")
    def _consistent(self) -> GenerateSpec:
        if self.format is FileFormat.CRITEO_TSV and (self.dense, self.sparse, self.lists) != (13, 26, 0):
            raise ValueError(
                f"criteo_tsv has 13 dense, 26 sparse and 0 list features; found dense {self.dense}, sparse "
                f"{self.sparse}, lists {self.lists}"
            )
        if self.format is FileFormat.CRITEO_TSV and self.conversion_rate is not None:
            raise ValueError("criteo_tsv has one label; remove conversion_rate or choose another format")
        if self.days > (date.max - self.start).days:
            value, allowed = f"{self.start} with {counted(self.days, 'day')}", f"days that end before {date.max}"
            raise FieldError("start", value, allowed, "begin earlier or make fewer days")
        if self.rows_per_file % CHUNK_ROWS and self.rows_per_file > CHUNK_ROWS:
            raise ValueError(f"rows_per_file {self.rows_per_file} must be a multiple of {CHUNK_ROWS}, or below it")
        return self


class DayTruth(Spec):
    """One generated day: its rows, and the metrics of the true probabilities on them."""

    day: date
    rows: int
    positives: int
    bytes: int
    best_auc: float | None
    best_normalized_entropy: float | None
    best_log_loss: float
    conversions: int | None = None
    best_conversion_auc: float | None = None
    """AUC of P(click and conversion); None without conversions."""


class GenerateReport(Spec):
    """A generated log; the content of `_generated.json`."""

    spec: GenerateSpec
    days: tuple[DayTruth, ...] = ()

    @property
    def rows(self) -> int:
        return sum(day.rows for day in self.days)

    @property
    def bytes(self) -> int:
        return sum(day.bytes for day in self.days)


def training_data_for(spec: GenerateSpec) -> TrainingData:
    """The data section of a job that reads what `generate(spec)` writes."""
    criteo = spec.format is FileFormat.CRITEO_TSV
    encoding: Literal["integer", "hexadecimal"] = "hexadecimal" if criteo else "integer"
    return TrainingData(
        path=spec.path,
        format=spec.format,
        partitioning=spec.partitioning,
        labels=() if spec.conversion_rate is None else (LabelColumn(name="label"), LabelColumn(name="conversion")),
        dense=tuple(DenseFeature(name=f"I{i + 1}") for i in range(spec.dense)),
        sparse=(
            *(SparseFeature(name=f"C{i + 1}", encoding=encoding) for i in range(spec.sparse)),
            *(SparseFeature(name=f"L{i + 1}", is_list=True, pooling="mean") for i in range(spec.lists)),
        ),
        timestamp=None if criteo else "timestamp",
        session=None if criteo else "session_id",
    )


def generate(spec: GenerateSpec, progress: finished.Progress | None = None) -> GenerateReport:
    """Writes the missing partitions, with the memory of a few chunks of 65,536 rows.

    A log with the first days of the same spec is continued; a complete one is not changed.

    Raises:
        DataError: the path contains other data, or cannot be written.
    """
    try:
        return _generate(spec, progress)
    except OSError as error:
        raise DataError(
            f"{spec.path}: cannot be written ({error}); days that are complete stay, and the same call continues"
        ) from error


def _generate(spec: GenerateSpec, progress: finished.Progress | None) -> GenerateReport:
    report = _existing(spec)
    done = {day.day for day in report.days}
    maker: ClickMaker | None = None
    rows = report.rows
    total = spec.days * spec.rows_per_day
    if progress is not None:
        progress(rows, total)
    for index in range(spec.days):
        day = spec.start + timedelta(days=index)
        if day in done:
            continue
        if maker is None:
            maker = ClickMaker(spec, total)
        truth, conversions = BinaryMetricsSketch(), BinaryMetricsSketch()
        size = 0
        for partition, part_rows, first in _partitions(spec, index):
            with PartitionWriter(spec, join(spec.path, partition.folder)) as writer:
                for clicks in _chunks(spec, maker, partition, index, first, part_rows):
                    writer.write(clicks)
                    truth.update(clicks.probability, clicks.label)
                    if clicks.conversion is not None and clicks.conversion_probability is not None:
                        conversions.update(clicks.conversion_probability, clicks.conversion)
                    rows += len(clicks.label)
                    if progress is not None:
                        progress(rows, total)
            size += writer.bytes
        log_loss = truth.log_loss()
        assert log_loss is not None
        day_truth = DayTruth(
            day=day,
            rows=truth.rows,
            positives=truth.positives,
            bytes=size,
            best_auc=truth.auc(),
            best_normalized_entropy=truth.normalized_entropy(),
            best_log_loss=log_loss,
            conversions=conversions.positives if conversions.rows else None,
            best_conversion_auc=conversions.auc(),
        )
        report = report.model_copy(update={"days": (*report.days, day_truth)})
        finished.write_report(spec.path, RECORD_NAME, report)
    return report


def _existing(spec: GenerateSpec) -> GenerateReport:
    # A day's rows do not depend on the path and the number of days.
    inputs = {f"spec.{name}": value for name, value in spec if name not in ("path", "days")}
    report = finished.finished_report(spec.path, RECORD_NAME, GenerateReport, "generated", inputs)
    if report is not None:
        return report.model_copy(update={"spec": spec}) if spec.days > report.spec.days else report
    report = GenerateReport(spec=spec)
    # Written first, so that an interrupted run is recognised and continued.
    finished.write_report(spec.path, RECORD_NAME, report)
    return report


def _partitions(spec: GenerateSpec, index: int) -> Iterator[tuple[Partition, int, int]]:
    """(partition, its rows, rows of the day before it)."""
    day = spec.start + timedelta(days=index)
    if spec.partitioning is Partitioning.DAY:
        yield Partition(day), spec.rows_per_day, 0
        return
    bounds = np.linspace(0, spec.rows_per_day, 25).astype(int).tolist()
    for hour in range(24):
        if bounds[hour + 1] > bounds[hour]:
            yield Partition(day, hour), bounds[hour + 1] - bounds[hour], bounds[hour]


def _chunks(
    spec: GenerateSpec, maker: ClickMaker, partition: Partition, day: int, first: int, rows: int
) -> Iterator[Clicks]:
    """The partition's chunks in order; two threads make the next ones meanwhile."""
    maker.prepare(day)
    calendar = LogCalendar("UTC", spec.partitioning)
    begin, end = (int(moment.timestamp()) for moment in (calendar.begin(partition), calendar.end(partition)))
    seconds = float(end - begin)
    with ThreadPoolExecutor(2) as pool:
        waiting: deque[Future[Clicks]] = deque()
        for low in range(0, rows, CHUNK_ROWS):
            count = min(CHUNK_ROWS, rows - low)
            waiting.append(
                pool.submit(
                    maker.make,
                    day=day,
                    first_row=first + low,
                    rows=count,
                    begin_seconds=begin + low / rows * seconds,
                    end_seconds=begin + (low + count) / rows * seconds,
                    partition_end_seconds=begin + seconds,
                )
            )
            if len(waiting) > 2:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
