"""Partitions: the day and hour folders of a click log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date

import pyarrow.fs as pafs

from elastrec.platform.data.files import join, locate
from elastrec.platform.specs.data import Partitioning, TrainingData
from elastrec.platform.specs.errors import DataError
from elastrec.platform.specs.partition_folders import HIVE_NULL, Level, hive_keys
from elastrec.platform.specs.text.some import some

_NAME = re.compile(r"^(?:day=)?(\d{4}-\d{2}-\d{2})(?:[/T](?:hour=)?(\d{2}))?$")


@dataclass(frozen=True, order=True)
class Partition:
    """One day (`hour` -1) or one hour (0 to 23) of a click log, in the log's own time zone."""

    day: date
    hour: int = -1

    @property
    def folder(self) -> str:
        """`day=2026-01-31` or `day=2026-01-31/hour=07`: its name, and where elastrec writes it. Logs made elsewhere may
        hold it in another folder, see `partition_roots`."""
        day = f"day={self.day.isoformat()}"
        return day if self.hour < 0 else f"{day}/hour={self.hour:02d}"

    def __str__(self) -> str:
        return self.folder

    @classmethod
    def parse(cls, text: str) -> Partition:
        """From `2026-01-31`, `2026-01-31T07`, `day=2026-01-31` or `day=2026-01-31/hour=07`.

        Raises:
            DataError: another form, or no such day or hour.
        """
        match = _NAME.match(text)
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


def existing_partitions(data: TrainingData) -> list[Partition]:
    """The partitions whose folders exist, oldest first.

    Raises:
        DataError: the data's root folder does not exist, or a folder is named almost like a partition.
    """
    filesystem, root = locate(data.path)
    kind = filesystem.get_file_info(root).type
    if kind == pafs.FileType.File:
        raise DataError(f"data.path: {data.path} is a file; allowed: a folder of partitions; correct the path")
    if kind != pafs.FileType.Directory:
        raise DataError(f"data.path: the folder {data.path} does not exist; create it or correct the path")
    pattern, partitions = data.folders, set()
    for names in _walk(data, filesystem, root.rstrip("/"), ()):
        try:
            partitions.add(Partition(*pattern.read(names)))
        except ValueError as error:
            raise _odd(data, names, str(error)) from error
    return sorted(partitions)


def chosen_folders(data: TrainingData, partitions: Sequence[Partition] | None) -> list[tuple[str, list[str]]]:
    """(name, URIs of its folders) of each chosen partition, oldest first; ("", the log's path) without partitioning.

    Args:
        partitions: None: all that exist.

    Raises:
        DataError: partitions of a log without partitioning were chosen, or the log has no partition.
    """
    if data.partitioning is Partitioning.NONE:
        if partitions is not None:
            raise DataError("partitions: the data has data.partitioning none; allowed: no choice of partitions")
        return [("", [data.path])]
    chosen = sorted(set(existing_partitions(data) if partitions is None else partitions))
    if not chosen:
        raise no_partition(data)
    return [(partition.folder, partition_roots(data, partition)) for partition in chosen]


def no_partition(data: TrainingData) -> DataError:
    """The error for a log without any partition."""
    example = data.folders.path(date(2026, 1, 31), 7)
    hint = ""
    if others := other_folders(data):
        fields = f"data.partitioning ({data.partitioning}) or data.partition_folder ({data.folders})"
        hint = f"; there are {others}: correct {fields}"
    return DataError(f"{data.path}: holds no partition; expected folders such as {example}{hint}")


def partition_roots(data: TrainingData, partition: Partition) -> list[str]:
    """URIs of a partition's folder, or of its folders where the pattern has keys of any value.

    Those with such keys exist; where there are none, it is the pattern with the keys as they stand there.
    """
    path = data.folders.path(partition.day, partition.hour)
    if not any(level.is_any for level in data.folders.levels):
        return [join(data.path, path)]
    filesystem, root = locate(data.path)
    folders: list[tuple[str, ...]] = [()]
    for name, level in zip(path.split("/"), data.folders.levels, strict=True):
        if level.is_any:
            folders = [
                (*above, each) for above in folders for each in _named(filesystem, "/".join((root, *above)), level)
            ]
        else:
            folders = [(*above, name) for above in folders]
    infos = filesystem.get_file_info(["/".join((root, *names)) for names in folders])
    roots = [names for names, info in zip(folders, infos, strict=True) if info.type != pafs.FileType.NotFound]
    return [join(data.path, *names) for names in roots] or [join(data.path, path)]


def folder_keys(data: TrainingData, uri: str) -> dict[str, str | None]:
    """Values of the Hive keys `key=value` in the folders of a file, except those that say the partition."""
    folder = uri[len(join(data.path)) :].strip("/").rpartition("/")[0]
    return hive_keys(folder) if data.partitioning is Partitioning.NONE else data.folders.keys(folder)


def _walk(
    data: TrainingData, filesystem: pafs.FileSystem, root: str, above: tuple[str, ...]
) -> Iterator[tuple[str, ...]]:
    """Names of folders, level by level, whose beginnings are those of the pattern."""
    if len(above) == len(data.folders.levels):
        yield above
        return
    level = data.folders.levels[len(above)]
    for name in _named(filesystem, "/".join((root, *above)), level):
        if level.names.fullmatch(name) is None:
            raise _odd(data, (*above, name), f"{name} is not of the form {level.text}")
        yield from _walk(data, filesystem, root, (*above, name))


def _named(filesystem: pafs.FileSystem, path: str, level: Level) -> list[str]:
    """Folders that are or should be of a level."""
    names = _folders(filesystem, path)
    if level.is_fixed:
        return [name for name in names if name == level.text]
    # Names without a fixed beginning are distinguished from other folders by their first digit.
    return [name for name in names if name.startswith(level.prefix) and (level.prefix or name[0].isdigit())]


def _folders(filesystem: pafs.FileSystem, path: str) -> list[str]:
    infos = filesystem.get_file_info(pafs.FileSelector(path, allow_not_found=True))
    return sorted(info.base_name for info in infos if info.type == pafs.FileType.Directory)


def other_folders(data: TrainingData) -> str:
    """A few folders `key=value` beside those of the pattern, for a message; empty where there are none."""
    filesystem, root = locate(data.path)
    return some([name for name in _folders(filesystem, root) if "=" in name])


def _odd(data: TrainingData, names: tuple[str, ...], reason: str) -> DataError:
    where = join(data.path, *names)
    if names[-1].endswith(f"={HIVE_NULL}"):
        return DataError(
            f"{where}: holds rows without a {data.partitioning}, which belong to no partition; move the folder out of "
            "data.path, or write its rows with a value"
        )
    example = data.folders.path(date(2026, 1, 31), 7)
    unit = "an hour" if data.partitioning is Partitioning.HOUR else "a day"
    return DataError(
        f"{where}: is not the folder of {unit} ({reason}); data.partition_folder is {data.folders}, for example "
        f"{example}; rename the folder, move it out of data.path, or correct data.partition_folder"
    )
