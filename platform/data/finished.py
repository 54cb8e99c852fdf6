"""Output files and folders that appear when they are complete, and the reports in such folders."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pydantic import ValidationError

from elastrec.platform.data.files import join, locate, read_bytes, shows_unfinished, write_bytes
from elastrec.platform.specs.base import Spec
from elastrec.platform.specs.errors import DataError
from elastrec.platform.specs.text.whole_file import is_temporary_of

R = TypeVar("R", bound=Spec)
Progress = Callable[[int, int], None]
"""Called with (rows so far, rows in all)."""

ROW_GROUP_ROWS = 16_384
"""Small, because shards have some ten thousand rows and are read in whole row groups."""
PARQUET_SETTINGS: Mapping[str, Any] = {"compression": "zstd", "compression_level": 1, "write_statistics": False}
"""Of `pq.ParquetWriter`, for all files except clustered ones; the same rows give the same bytes."""
_UNFINISHED = "_unfinished"
"""A file that marks a folder while it is written, on file systems that cannot rename folders."""


class AtomicFile:
    """An output stream whose content appears under `uri` when `commit` is called."""

    def __init__(self, uri: str) -> None:
        self._filesystem, self._path = locate(uri)
        self._renamed = shows_unfinished(self._filesystem)
        folder, _, name = self._path.rpartition("/")
        self._written = f"{folder}/_{name}.tmp" if self._renamed else self._path
        try:
            if self._renamed:
                self._filesystem.create_dir(folder, recursive=True)
            self.stream = self._filesystem.open_output_stream(self._written)
        except OSError as error:
            raise DataError(f"{uri}: cannot be written ({error})") from error

    def commit(self) -> int:
        """Closes the file and gives it its name; returns its size in bytes."""
        self._close()
        if self._renamed:
            self._filesystem.move(self._written, self._path)
        return int(self._filesystem.get_file_info(self._path).size)

    def discard(self) -> None:
        """Closes and removes the file after an error, which errors of this call must not hide: they are ignored.

        An open stream of an object store would write its object when it is collected, perhaps over that of a next run.
        """
        with suppress(Exception):
            self._close()
        with suppress(Exception):
            self.stream.close()
        # An object store shows what was written until here.
        with suppress(OSError):
            self._filesystem.delete_file(self._written)

    def _close(self) -> None:
        self.stream.close()


class ParquetFile(AtomicFile):
    """A Parquet file that appears under `uri` when `commit` is called.

    Args:
        settings: of `pq.ParquetWriter`.
    """

    def __init__(self, uri: str, schema: pa.Schema, settings: Mapping[str, Any] = PARQUET_SETTINGS) -> None:
        super().__init__(uri)
        self._writer = pq.ParquetWriter(self.stream, schema, **settings)

    def write(self, table: pa.Table, row_group_size: int = ROW_GROUP_ROWS) -> None:
        """Appends rows in row groups of this size."""
        self._writer.write_table(table, row_group_size=row_group_size)

    def _close(self) -> None:
        self._writer.close()
        self.stream.close()


def write_report(folder: str, name: str, report: Spec) -> None:
    """Writes the report of a folder."""
    write_bytes(join(folder, name), report.model_dump_json(indent=1).encode())


def read_report(folder: str, name: str, kind: type[R]) -> R:
    """The report in a folder.

    Raises:
        DataError: there is none, or it cannot be read.
    """
    uri = join(folder, name)
    try:
        return kind.model_validate_json(read_bytes(uri))
    except ValidationError as error:
        raise DataError(f"{uri}: cannot be read ({error}); choose another folder, or remove this one") from error


def finished_report(
    folder: str, name: str, kind: type[R], made: str, inputs: Mapping[str, object], *, own_files: Collection[str] = ()
) -> R | None:
    """The report in an output folder; None if the folder is missing, empty, or has only files of an interrupted run.

    Args:
        folder: a local path or URI.
        name: that of the file with the report.
        made: for messages: `converted`, `clustered`.
        inputs: what the folder must have been made from: values by the names of the report's attributes.
        own_files: names of files that may be there without a report.

    Raises:
        DataError: the folder is a file, it was made from other inputs, the report cannot be read, or there are other
            files without a report.
    """
    filesystem, path = locate(folder)
    info = filesystem.get_file_info(path)
    if info.type == pafs.FileType.NotFound:
        return None
    if info.type == pafs.FileType.File:
        raise DataError(f"{folder}: is a file; choose a folder")
    names = {each.base_name for each in filesystem.get_file_info(pafs.FileSelector(path))}
    # Of small files whose writing was interrupted (`write_bytes`).
    names = {each for each in names if not any(is_temporary_of(own, each) for own in (name, *own_files))}
    if name not in names:
        if names.difference(own_files) and _UNFINISHED not in names:
            raise DataError(f"{folder}: holds files that were not {made}; choose another folder or remove it")
        return None
    report = read_report(folder, name, kind)
    before = {each: attrgetter(each)(report) for each in inputs}
    differing = [f"{each} {before[each]!r} (now {value!r})" for each, value in inputs.items() if value != before[each]]
    if differing:
        raise DataError(f"{folder}: was {made} with another {', '.join(differing)}; choose another folder or remove it")
    return report


@contextmanager
def staged_folder(target: str) -> Iterator[str]:
    """Yields a folder to write into, which is `target` when the block has ended.

    On a local file system it is a folder beside the target, which is removed after an exception. Elsewhere it is the
    target itself: files of an interrupted run are removed first, and `finished_report` returns None until the block has
    ended.

    Args:
        target: a folder for which `finished_report` returned None.
    """
    filesystem, path = locate(target)
    if not isinstance(filesystem, pafs.LocalFileSystem):
        filesystem.delete_dir_contents(path, missing_dir_ok=True)
        mark = join(target, _UNFINISHED)
        write_bytes(mark, b"")
        yield target
        filesystem.delete_file(locate(mark)[1])
        return
    final = Path(path)
    staging = final.with_name(f".{final.name}.unfinished")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        yield str(staging)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    if final.is_dir():
        final.rmdir()  # it is empty, and would prevent the rename
    staging.rename(final)
