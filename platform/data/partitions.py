"""Partitions: the day and hour folders of a click log."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import pyarrow.fs as pafs

from elastrec.platform.data.files import locate
from elastrec.platform.specs.data import Partitioning, TrainingData
from elastrec.platform.specs.errors import DataError

_FOLDER = re.compile(r"^(?:day=)?(\d{4}-\d{2}-\d{2})(?:[/T](?:hour=)?(\d{2}))?$")


@dataclass(frozen=True, order=True)
class Partition:
    """One day (`hour` -1) or one hour (0 to 23) of a click log, in UTC."""

    day: date
    hour: int = -1

    @property
    def folder(self) -> str:
        """`day=2026-01-31` or `day=2026-01-31/hour=07`."""
        day = f"day={self.day.isoformat()}"
        return day if self.hour < 0 else f"{day}/hour={self.hour:02d}"

    def __str__(self) -> str:
        return self.folder

    @property
    def start(self) -> datetime:
        return datetime(self.day.year, self.day.month, self.day.day, max(self.hour, 0), tzinfo=UTC)

    @property
    def end(self) -> datetime:
        """The first moment after the partition."""
        return self.start + (timedelta(days=1) if self.hour < 0 else timedelta(hours=1))

    def next(self) -> Partition:
        """The partition that begins where this one ends."""
        return Partition(self.end.date(), -1 if self.hour < 0 else self.end.hour)

    @classmethod
    def parse(cls, text: str) -> Partition:
        """From `2026-01-31`, `2026-01-31T07`, `day=2026-01-31` or `day=2026-01-31/hour=07`.

        Raises:
            DataError: another form, or no such day or hour.
        """
        match = _FOLDER.match(text)
        try:
            if match is None:
                raise ValueError("unknown form")
            hour = -1 if match[2] is None else int(match[2])
            if hour > 23:
                raise ValueError("no such hour")
            return cls(date.fromisoformat(match[1]), hour)
        except ValueError as error:
            raise DataError(
                f"partition: {text!r} is not allowed ({error}); allowed: 2026-01-31, 2026-01-31T07, "
                "day=2026-01-31 or day=2026-01-31/hour=07"
            ) from error


def partitions_between(data: TrainingData, start: date | datetime, end: date | datetime) -> list[Partition]:
    """Every partition that begins in [start, end), whether it exists or not (a manifest refuses missing ones).

    Args:
        start, end: dates, or date-times (without a time zone: UTC).

    Raises:
        DataError: the data has no partitions, or the interval is empty.
    """
    if data.partitioning is Partitioning.NONE:
        raise DataError("data.partitioning: none has no partitions to choose from; allowed here: day, hour")
    first, last = _moment(start), _moment(end)
    step = timedelta(days=1) if data.partitioning is Partitioning.DAY else timedelta(hours=1)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    at = epoch + -((epoch - first) // step) * step
    partitions = []
    while at < last:
        partitions.append(Partition(at.date(), -1 if data.partitioning is Partitioning.DAY else at.hour))
        at += step
    if not partitions:
        raise DataError(
            f"no {data.partitioning} begins in the interval from {start} up to {end}; allowed: an interval that "
            "holds the beginning of at least one partition"
        )
    return partitions


def existing_partitions(data: TrainingData) -> list[Partition]:
    """The partitions whose folders exist, oldest first.

    Raises:
        DataError: the data's root folder does not exist.
    """
    filesystem, root = locate(data.path)
    kind = filesystem.get_file_info(root).type
    if kind == pafs.FileType.File:
        raise DataError(f"data.path: {data.path} is a file; allowed: a folder of partitions; correct the path")
    if kind != pafs.FileType.Directory:
        raise DataError(f"data.path: the folder {data.path} does not exist; create it or correct the path")
    days = _folders(filesystem, root, "day=")
    if data.partitioning is Partitioning.HOUR:
        names = [f"{day}/{hour}" for day in days for hour in _folders(filesystem, f"{root.rstrip('/')}/{day}", "hour=")]
    else:
        names = days
    return sorted(Partition.parse(name) for name in names)


def _folders(filesystem: pafs.FileSystem, path: str, prefix: str) -> list[str]:
    infos = filesystem.get_file_info(pafs.FileSelector(path))
    names = (info.base_name for info in infos if info.type == pafs.FileType.Directory)
    return [name for name in names if name.startswith(prefix)]


def _moment(value: date | datetime) -> datetime:
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
