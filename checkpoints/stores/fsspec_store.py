"""Stores by fsspec: Google Cloud Storage, Azure, HDFS (WebHDFS). To add a service, add an entry to `SERVICES`.

fsspec has no atomic operation that creates an object unless it exists, so this is implemented for each service: object
stores use a condition of the request, HDFS a rename, which fails if the target exists.

Each library reads endpoints and credentials from its usual environment, or from fsspec's configuration, such as
`FSSPEC_GS_TOKEN`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import fsspec
import requests
from fsspec import AbstractFileSystem
from fsspec.implementations.webhdfs import WebHDFS

from elastrec.checkpoints.errors import DroppedError, StoreError
from elastrec.checkpoints.stores.store import Store, StoreWriter, checked_key
from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.specs.text.whole_file import (
    HIDDEN,
    is_temporary,
    is_temporary_of,
    temporary_name,
    temporary_prefix,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

BLOCK_BYTES = 16 * 2**20
_TIMEOUTS_SECONDS = (10.0, 60.0)
"""Timeout for connecting, and between two packets."""


@contextmanager
def _explained(what: str, where: str, hint: str) -> Iterator[None]:
    """Converts errors of a service to StoreError. Each library has its own error classes, so all classes except ours
    are converted."""
    try:
        yield
    except (CheckpointError, FileNotFoundError):
        raise
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise StoreError(f"{what} {where}: {reason}; check {hint}") from error


class _ObjectWriter(StoreWriter):
    """An object that becomes visible when the upload is complete."""

    def __init__(self, fs: AbstractFileSystem, path: str) -> None:
        self._file = fs.open(path, "wb", block_size=BLOCK_BYTES)

    def write(self, data: Buffer) -> None:
        self._file.write(data)

    def close(self) -> None:
        try:
            self._file.close()
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        if self._file.closed:
            return
        # A file that is marked as closed sends nothing more, not even when it is garbage-collected.
        self._file.closed = True
        # The uploaded bytes are invisible; if they cannot be deleted now, the service deletes them after some days.
        with suppress(Exception):
            self._file.discard()


class _RenamingWriter(StoreWriter):
    """A file that is written under a temporary name, because the service shows files while they are written."""

    def __init__(self, fs: WebHDFS, path: str) -> None:
        self._fs, self._path, self.temporary = fs, path, _temporary(path)
        self._file = fs.open(self.temporary, "wb", block_size=BLOCK_BYTES)
        self._open = True

    def write(self, data: Buffer) -> None:
        with self._noticing_drops():
            self._file.write(data)

    def finish(self) -> None:
        """Closes the temporary file, which is then durable."""
        with self._noticing_drops():
            self._file.close()

    @contextmanager
    def _noticing_drops(self) -> Iterator[None]:
        """Raises DroppedError if another writer has deleted the temporary file (`_drop_temporaries`)."""
        try:
            yield
        except (FileNotFoundError, requests.HTTPError) as error:
            # Only POST appends to a file, which has been made by then; others may have been refused.
            request = getattr(error, "request", None)
            had_file = isinstance(error, FileNotFoundError) or (request is not None and request.method == "POST")
            if had_file and self._fs.exists(self._path) and not self._fs.exists(self.temporary):
                raise DroppedError(f"{self._path}: another writer has completed the object: {error}") from error
            raise

    def close(self) -> None:
        if not self._open:
            return
        try:
            self.finish()
            with self._noticing_drops():
                _renamed(self._fs, self.temporary, self._path, renameoptions="OVERWRITE")
            self._open = False
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        if not self._open:
            return
        self._open, self._file.closed = False, True
        with suppress(FileNotFoundError):
            self._fs.rm(self.temporary)


def _temporary(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/{temporary_name(name)}"


def _renamed(fs: WebHDFS, source: str, target: str, **options: str) -> bool:
    answer = fs._call("RENAME", method="put", path=source, destination=target, **options)
    # A rename with options returns an empty answer, or an error if it fails.
    return bool(answer.json()["boolean"]) if answer.content else True


def _create_object(fs: AbstractFileSystem, path: str, data: bytes) -> bool:
    try:
        fs.pipe_file(path, data, mode="create")
    except FileExistsError:
        return False
    return True


def _create_by_rename(fs: AbstractFileSystem, path: str, data: bytes) -> bool:
    assert isinstance(fs, WebHDFS)
    writer = _RenamingWriter(fs, path)
    try:
        writer.write(data)
        writer.finish()
        # The name node renames atomically, and never replaces a file.
        return _renamed(fs, writer.temporary, path)
    except DroppedError:
        return False
    finally:
        writer.abort()


def _drop_temporaries(fs: AbstractFileSystem, path: str) -> None:
    """Deletes the temporary files of a complete object. Their names follow each other, so a part of the listing is
    enough."""
    assert isinstance(fs, WebHDFS)
    folder, _, name = path.rpartition("/")
    answer = fs._call("LISTSTATUS_BATCH", path=folder, startAfter=temporary_prefix(name)).json()
    for entry in answer["DirectoryListing"]["partialListing"]["FileStatuses"]["FileStatus"]:
        if is_temporary_of(name, entry["pathSuffix"]):
            fs.rm_file(f"{folder}/{entry['pathSuffix']}")


def _with_timeouts(fs: AbstractFileSystem) -> None:
    """Sets timeouts, because requests has none by default."""
    fs.session.request = functools.partial(fs.session.request, timeout=_TIMEOUTS_SECONDS)


@dataclass(frozen=True)
class Service:
    """Properties of a service that fsspec does not have.

    Attributes:
        extra: the extra of elastrec that installs the library; empty: none is needed.
        hint: what to check if the service is not reachable.
        create: writes an object unless it exists, atomically; returns False if it exists.
        writer: opens a streamed object.
        made_folders: whether folders are separate objects, so that the root can be created.
        prepare: called with a new file system.
        drop: deletes what killed writers have left of a complete object.
    """

    extra: str
    hint: str
    create: Callable[[AbstractFileSystem, str, bytes], bool] = _create_object
    writer: Callable[[Any, str], StoreWriter] = _ObjectWriter
    made_folders: bool = False
    prepare: Callable[[AbstractFileSystem], None] = lambda fs: None
    drop: Callable[[AbstractFileSystem, str], None] = lambda fs, path: None


_HDFS = Service(
    "", "that the name node answers at this host and port, and the user's rights",
    _create_by_rename, _RenamingWriter, made_folders=True, prepare=_with_timeouts, drop=_drop_temporaries,
)  # fmt: skip
_AZURE = Service("azure", "the container, and AZURE_STORAGE_CONNECTION_STRING or the account's credentials")
SERVICES: dict[str, Service] = {
    "gs": Service("gcs", "the bucket, and the credentials that GOOGLE_APPLICATION_CREDENTIALS names"),
    "abfs": _AZURE,
    "abfss": _AZURE,
    "webhdfs": _HDFS,
    "swebhdfs": _HDFS,
}
"""By the scheme of a URI."""


class FsspecStore(Store):
    """Objects below a URI of one of `SERVICES`, such as `gs://bucket/folder` or `webhdfs://user@host:9870/folder`.

    Args:
        uri: its bucket or container must exist.

    Raises:
        CheckpointError: the service's library is not installed, or the URI is invalid.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")
        self._protocol = uri.partition("://")[0]
        self._service = SERVICES[self._protocol]
        try:
            # Cached listings would hide objects that other processes write.
            self._fs, root = fsspec.core.url_to_fs(self.uri, use_listings_cache=False, skip_instance_cache=True)
        except ImportError as error:
            raise CheckpointError(
                f"store: {uri!r} needs a library that is not installed: pip install 'elastrec[{self._service.extra}]'"
            ) from error
        except Exception as error:
            raise CheckpointError(f"store: {uri!r} cannot be opened: {error}; check {self._service.hint}") from error
        self._root = str(root).rstrip("/")
        self._service.prepare(self._fs)

    def _path(self, key: str) -> str:
        return f"{self._root}/{checked_key(key)}"

    @contextmanager
    def _asking(self, what: str, key: str) -> Iterator[None]:
        with _explained(what, f"{self.uri}/{key}", self._service.hint):
            yield

    @contextmanager
    def _existing(self, what: str, key: str) -> Iterator[None]:
        try:
            with self._asking(what, key):
                yield
        except FileNotFoundError:
            raise CheckpointError(f"{self.uri}/{key}: there is no such object in the checkpoint store") from None

    def create(self) -> None:
        if self._service.made_folders:
            with self._asking("could not make", ""):
                self._fs.makedirs(self._root, exist_ok=True)

    def open_write(self, key: str) -> StoreWriter:
        path = self._path(key)
        with self._existing("could not write", key):
            return _Explaining(self._service.writer(self._fs, path), f"{self.uri}/{key}", self._service.hint)

    def get(self, key: str) -> bytes:
        path = self._path(key)
        with self._existing("could not read", key):
            return bytes(self._fs.cat_file(path))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        path = self._path(key)
        if length == 0:
            return b""
        with self._existing("could not read", key), self._fs.open(path, "rb", cache_type="none") as file:
            size = file.size
            if start + length <= size:
                file.seek(start)
                return bytes(file.read(length))
        raise CheckpointError(f"{self.uri}/{key}: asked for {length} bytes from {start}, the object has {size} in all")

    def size(self, key: str) -> int | None:
        path = self._path(key)
        with self._asking("could not look at", key):
            try:
                details = self._fs.info(path)
            except FileNotFoundError:
                return None
        return int(details["size"]) if details["type"] == "file" else None

    def _listed(self, prefix: str) -> str:
        return self._path(prefix) if prefix else self._root

    def keys(self, prefix: str = "") -> list[str]:
        return self._files(prefix, lambda name: not name.startswith(HIDDEN))

    def _files(self, prefix: str, wanted: Callable[[str], bool]) -> list[str]:
        with self._asking("could not list", prefix):
            try:
                # If fsspec walks folders itself, it treats a folder that cannot be listed as empty.
                how = {} if self._fs.async_impl else {"on_error": "raise"}
                paths = self._fs.find(self._listed(prefix), **how)
            except FileNotFoundError:
                return []
        # A service that has no folders lists the object itself.
        keys = [str(path).removeprefix(f"{self._root}/") for path in paths if str(path) != self._listed(prefix)]
        return sorted(key for key in keys if wanted(key.rpartition("/")[2]))

    def unfinished(self, prefix: str = "") -> list[str]:
        return self._files(prefix, is_temporary) if self._service.writer is _RenamingWriter else []

    def drop_unfinished(self, key: str) -> None:
        path = self._path(key)
        # The object is complete, whether or not this is possible.
        with suppress(Exception):
            self._service.drop(self._fs, path)

    def folders(self, prefix: str = "") -> list[str]:
        listed = self._listed(prefix)
        with self._asking("could not list", prefix):
            try:
                entries = self._fs.ls(listed, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return []
        folders = [str(entry["name"]).rstrip("/") for entry in entries if entry["type"] == "directory"]
        return sorted(folder.rpartition("/")[2] for folder in folders if folder != listed)

    def delete(self, key: str) -> None:
        path = self._path(key)
        with self._asking("could not delete", key), suppress(FileNotFoundError):
            self._fs.rm_file(path)

    def delete_tree(self, prefix: str) -> None:
        path = self._path(prefix)
        with self._asking("could not delete", prefix), suppress(FileNotFoundError):
            self._fs.rm(path, recursive=True)

    def _create(self, key: str, data: Buffer) -> bool:
        path = self._path(key)
        with self._asking("could not write", key):
            return self._service.create(self._fs, path, bytes(data))

    @property
    def _place(self) -> str:
        return f"{self._protocol}://{self._root.partition('/')[0]} {self._fs.storage_options}"

    def get_if_exists(self, key: str) -> bytes | None:
        path = self._path(key)
        with self._asking("could not read", key):
            try:
                return bytes(self._fs.cat_file(path))
            except FileNotFoundError:
                return None


class _Explaining(StoreWriter):
    """A writer whose errors name the object and what to check."""

    def __init__(self, writer: StoreWriter, where: str, hint: str) -> None:
        self._writer, self._where, self._hint = writer, where, hint

    def write(self, data: Buffer) -> None:
        with _explained("could not write", self._where, self._hint):
            self._writer.write(data)

    def close(self) -> None:
        with _explained("could not write", self._where, self._hint):
            self._writer.close()

    def abort(self) -> None:
        with _explained("could not give up", self._where, self._hint):
            self._writer.abort()
