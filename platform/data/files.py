"""Access to files by local path or URI, with pyarrow's file systems."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from elastrec.platform.specs.errors import DataError
from elastrec.platform.specs.text.whole_file import temporary_name, write_whole

_SHARED = ("s3", "gs", "gcs")
# Environment variables on which an open file system depends, in addition to its URI.
_SETTINGS = ("AWS_", "GOOGLE_", "AZURE_", "HADOOP_")


@contextmanager
def errors_naming(place: str) -> Iterator[None]:
    """Puts a file, or rows of one, before the messages of the block's DataErrors."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{place}: {error}") from error


def locate(uri: str) -> tuple[pafs.FileSystem, str]:
    """The file system of a local path or URI, and the path inside it.

    Files of one bucket or host share one file system, and with it its connections and credentials.

    Raises:
        DataError: pyarrow does not support the scheme.
    """
    if "://" not in uri:
        return pafs.LocalFileSystem(), str(Path(uri).expanduser().absolute())
    parts = urlsplit(uri)
    try:
        if parts.scheme not in _SHARED:
            return pafs.FileSystem.from_uri(uri)
        settings = tuple(sorted(pair for pair in os.environ.items() if pair[0].startswith(_SETTINGS)))
        filesystem = _file_system(parts._replace(path="", fragment="").geturl(), settings)
        # Names of objects are not decoded, because a percent sign in them is not an escape.
        return filesystem, f"{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{uri}: cannot be opened ({error}); allowed: a local path or a URI such as s3://bucket/folder"
        ) from error


@lru_cache(maxsize=16)
def _file_system(endpoint: str, settings: tuple[tuple[str, str], ...]) -> pafs.FileSystem:
    filesystem, _ = pafs.FileSystem.from_uri(endpoint)
    return filesystem


def join(uri: str, *parts: str) -> str:
    """A path below a local path or URI; local paths become absolute, because every pod has its own folder."""
    if "://" not in uri:
        uri = str(Path(uri).expanduser().absolute())
    return "/".join((uri.rstrip("/"), *parts))


def list_files(uri: str, include: Sequence[str] = ()) -> list[tuple[str, pafs.FileInfo]]:
    """(URI, info) of a file, or of all files below a folder, by name; names beginning with `.` or `_` are left out.

    Args:
        include: patterns, one of which a file's name must match; none: all files.

    Raises:
        DataError: the path does not exist.
    """
    filesystem, path = locate(uri)
    root = filesystem.get_file_info(path)
    if root.type == pafs.FileType.File:
        return [(join(uri), root)]
    if root.type != pafs.FileType.Directory:
        raise DataError(f"{uri}: no such file or folder; check the job file's data.path and its partitions")
    files = []
    for info in filesystem.get_file_info(pafs.FileSelector(path, recursive=True)):
        relative = info.path[len(path.rstrip("/")) + 1 :]
        hidden = any(part[0] in "._" for part in relative.split("/"))
        chosen = not include or any(fnmatchcase(info.base_name, pattern) for pattern in include)
        if info.type == pafs.FileType.File and chosen and not hidden:
            files.append((join(uri, relative), info))
    return sorted(files, key=lambda pair: pair[0])


def read_bytes(uri: str) -> bytes:
    """Read a small file.

    Raises:
        DataError: it does not exist or cannot be read.
    """
    filesystem, path = locate(uri)
    try:
        with filesystem.open_input_file(path) as stream:
            return stream.read()
    except OSError as error:
        raise DataError(f"{uri}: cannot be read ({error})") from error


@contextmanager
def opened_parquet(uri: str) -> Iterator[pq.ParquetFile]:
    """A Parquet file, open until the end of the block.

    Raises:
        DataError: it does not exist or is no Parquet file; also if it cannot be read in the block.
    """
    filesystem, path = locate(uri)
    try:
        with filesystem.open_input_file(path) as stream:
            yield pq.ParquetFile(stream)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{uri}: cannot be read as a Parquet file ({error}); write it again, correct data.format, or say with "
            "data.include which files are read, for example ['*.parquet']"
        ) from error


def is_read_error(error: Exception) -> bool:
    """Whether a file could not be read for the moment, rather than having wrong content."""
    return isinstance(error, DataError) and isinstance(error.__cause__, OSError)


def shows_unfinished(filesystem: pafs.FileSystem) -> bool:
    """Whether a file is visible while it is written, as on a disk and in HDFS; an object store shows whole objects."""
    return filesystem.type_name not in ("s3", "gcs", "abfs")


def make_durable(folder: str, uris: Collection[str]) -> None:
    """Returns when files below a local folder, and their names, would survive a failure of the machine.

    Object stores need no such call: what they show is durable.

    Raises:
        DataError: a disk failed.
    """
    filesystem, root = locate(folder)
    if not isinstance(filesystem, pafs.LocalFileSystem):
        return
    paths = [Path(locate(uri)[1]) for uri in uris]
    folders = {above for path in paths for above in path.parents if above.is_relative_to(root)}
    for path in (*paths, *folders):
        try:
            _sync(path)
        except OSError as error:
            raise DataError(f"{path}: cannot be written ({error})") from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(uri: str, content: bytes) -> None:
    """Write a small file atomically.

    Raises:
        DataError: the place cannot be written.
    """
    filesystem, path = locate(uri)
    try:
        if not shows_unfinished(filesystem):
            with filesystem.open_output_stream(path) as stream:
                stream.write(content)
            return
        folder, _, name = path.rpartition("/")
        filesystem.create_dir(folder, recursive=True)
        if isinstance(filesystem, pafs.LocalFileSystem):
            write_whole(Path(path), content, is_durable=True)
            return
        temporary = f"{folder}/{temporary_name(name)}"
        try:
            with filesystem.open_output_stream(temporary) as stream:
                stream.write(content)
            filesystem.move(temporary, path)
        except BaseException:
            with suppress(OSError):
                filesystem.delete_file(temporary)
            raise
    except OSError as error:
        raise DataError(f"{uri}: cannot be written ({error})") from error
