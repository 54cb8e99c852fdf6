"""The interface of durable stores: a folder, a bucket, HDFS.

A store is rooted at a URI and addresses objects by relative keys such as `parts/server-0.bin`. An object appears
whole or not at all. Only `put_if_absent` may be called by two writers for the same key at the same time.
"""

from __future__ import annotations

import abc
import os
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import TYPE_CHECKING, Self
from urllib.parse import unquote, urlsplit

import structlog

from elastrec.checkpoints.errors import DroppedError, NotConditionalError
from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.specs.text.whole_file import HIDDEN

if TYPE_CHECKING:
    from typing_extensions import Buffer

_log = structlog.get_logger(__name__)

PROBE = f"{HIDDEN}probe"
"""Key of the object that the first probe creates. It stays, and no listing shows it."""
_probed: dict[str, bool] = {}
"""Results of `Store.conditional_writes` in this process, by `Store._place`."""


class StoreWriter(abc.ABC):
    """A streamed object: visible under its key once `close` returned, never before; gone after `abort`.

    As a context manager it closes, or aborts when the block raised.
    """

    @abc.abstractmethod
    def write(self, data: Buffer) -> None:
        """Appends bytes. The buffer may be reused when this returns."""

    @abc.abstractmethod
    def close(self) -> None:
        """Makes the object durable and visible.

        Raises:
            CheckpointError: the store refused; nothing is visible then.
        """

    @abc.abstractmethod
    def abort(self) -> None:
        """Drops what was written. No error when already closed or aborted."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class Store(abc.ABC):
    """Objects by key under one root. Every method raises StoreError with key and root when the store fails."""

    uri: str
    """Canonical root, absolute, without a trailing slash: `file:///a/b`, `s3://bucket/a/b` or `gs://bucket/a/b`."""

    @abc.abstractmethod
    def open_write(self, key: str) -> StoreWriter:
        """Starts a streamed object; memory in use stays below about 32 MiB. Replaces an object of the same key."""

    def put(self, key: str, data: Buffer) -> None:
        """Writes an object whole, durably; replaces one of the same key, and deletes what killed writers have left."""
        while True:
            try:
                with self.open_write(key) as writer:
                    writer.write(data)
                break
            except DroppedError:
                # By another writer of this object. The later one replaces it, as if they had not met.
                continue
        self.drop_unfinished(key)

    @abc.abstractmethod
    def get(self, key: str) -> bytes:
        """The object's bytes.

        Raises:
            CheckpointError: there is none, or the store failed.
        """

    @abc.abstractmethod
    def get_range(self, key: str, start: int, length: int) -> bytes | memoryview:
        """Exactly `length` bytes from `start`. A store in memory returns a view, so the bytes must be read soon.

        Raises:
            CheckpointError: there is no such object, or it is shorter.
        """

    def distrust(self, key: str) -> bool:
        """Reports that bytes of an object are damaged; returns whether it is read from another place from now on."""
        return False

    @abc.abstractmethod
    def size(self, key: str) -> int | None:
        """Bytes of an object; None when it does not exist."""

    def exists(self, key: str) -> bool:
        return self.size(key) is not None

    @abc.abstractmethod
    def keys(self, prefix: str = "") -> list[str]:
        """Keys of all objects in the folder `prefix` and below it, sorted."""

    @abc.abstractmethod
    def folders(self, prefix: str = "") -> list[str]:
        """Names (not keys) of the folders directly below `prefix`, sorted."""

    @abc.abstractmethod
    def delete(self, key: str) -> None:
        """Deletes one object; no error when there is none."""

    @abc.abstractmethod
    def delete_tree(self, prefix: str) -> None:
        """Deletes every object in a folder, unfinished ones included; no error when there is none."""

    def unfinished(self, prefix: str = "") -> list[str]:
        """Keys in a folder and below it of objects that were begun and neither closed nor aborted, sorted.

        They are still being written, or their writers were killed. Where an object has another name until it is
        complete, the key ends with that name. Empty if unfinished objects occupy no space of their own.
        """
        return []

    def delete_unfinished(self, prefix: str) -> None:
        """Drops the unfinished objects in a folder and below it: their writers cannot close them any more."""
        for key in self.unfinished(prefix):
            self.delete(key)

    def drop_unfinished(self, key: str) -> None:  # noqa: B027 (see below)
        """Deletes what killed writers have left beside a complete object.

        Object stores have nothing of a small object before it is complete.
        """

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        """Writes an object unless it exists; of several concurrent writers exactly one gets True. Deletes what killed
        writers have left.

        Raises:
            CheckpointError: the store does not guarantee that (see `conditional_writes`).
        """
        checked_key(key)
        if not self.conditional_writes():
            raise CheckpointError(
                f"{self.uri}: this store does not honour conditional puts: it overwrites an object that was to be "
                "created, so two writers could take the same name; use a store that does (AWS S3, MinIO, Ceph, R2, "
                "Google Cloud Storage, Azure, HDFS) or a shared folder"
            )
        is_new = self._create(key, data)
        # Of the object that exists now; a writer that is dropped by this gets False.
        self.drop_unfinished(key)
        return is_new

    @abc.abstractmethod
    def _create(self, key: str, data: Buffer) -> bool:
        """Writes an object unless it exists, in one operation of the service; returns False if it exists.

        Raises:
            NotConditionalError: the service refused the condition; nothing was written.
        """

    @abc.abstractmethod
    def get_if_exists(self, key: str) -> bytes | None:
        """The object's bytes; None when there is none."""

    def conditional_writes(self) -> bool:
        """Whether the store guarantees `put_if_absent`; tested once per process and place."""
        place = self._place
        if place not in _probed:
            _probed[place] = self._probe()
            _log.info("store probed", store=self.uri, conditional_writes=_probed[place])
        return _probed[place]

    @property
    @abc.abstractmethod
    def _place(self) -> str:
        """The service's address with its bucket, container or host, which all keys share."""

    def _probe(self) -> bool:
        # Some services return an error for the condition, and some ignore it silently.
        try:
            is_new = self._create(PROBE, b"1")
            # Otherwise it is of an earlier probe, of one at the same time, or of a try whose answer was lost.
            is_kept = not self._create(PROBE, b"2") if is_new else self.exists(PROBE)
        except NotConditionalError:
            return False
        self.drop_unfinished(PROBE)
        return is_kept

    def create(self) -> None:  # noqa: B027 (not every store has to be made)
        """Creates the store if it does not exist; its contents stay. A bucket must exist.

        Raises:
            CheckpointError: the store cannot be created.
        """

    def local_path(self, key: str) -> Path | None:
        """Path for memory mapping where objects are local files, else None."""
        return None

    def child_uri(self, key: str) -> str:
        """URI of a folder or object in this store; `open_store` of it gives a store rooted there."""
        return f"{self.uri}/{checked_key(key)}"


ALLOWED = (
    "a path, file:///path, s3://bucket/prefix, gs://bucket/prefix, abfs://container/prefix or "
    "webhdfs://user@host:port/folder"
)
"""The allowed names of stores."""
_WEBHDFS_PORT = 9870
"""Default port of a name node."""


def checked_key(key: str) -> str:
    """The key itself if it is relative, clean and inside the root.

    Raises:
        CheckpointError: it is empty, absolute, or has `.`, `..` or empty components.
    """
    if not key or key.startswith("/") or any(part in ("", ".", "..") for part in key.split("/")):
        raise CheckpointError(
            f"key: {key!r} is not allowed; allowed: a relative path without empty, '.' or '..' components"
        )
    return key


def open_store(uri: str | os.PathLike[str] | Store) -> Store:
    """The store rooted at a URI: a path (relative ones from the working folder), or one of ALLOWED; an open one itself.

    S3 endpoint, region and credentials come from boto3's usual environment (`AWS_ENDPOINT_URL_S3`,
    `AWS_ACCESS_KEY_ID`, ...), those of others from their libraries' (`fsspec_store`). Nothing is created or asked until
    the first operation.

    Raises:
        CheckpointError: another scheme, no bucket, or a library that is not installed.
    """
    if isinstance(uri, Store):
        return uri
    text = os.fspath(uri)
    if "://" not in text:
        if not text:
            raise CheckpointError(f"store: '' is not allowed; allowed: {ALLOWED}")
        from elastrec.checkpoints.stores.local_store import LocalStore

        return LocalStore(Path(text).absolute())
    parts = urlsplit(text)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not PurePosixPath(unquote(parts.path)).is_absolute():
            raise CheckpointError(f"store: {text!r} is not allowed; allowed: file:///absolute/path, with three slashes")
        from elastrec.checkpoints.stores.local_store import LocalStore

        return LocalStore(Path(unquote(parts.path)))
    if parts.scheme == "s3":
        if not parts.netloc:
            raise CheckpointError(f"store: {text!r} names no bucket; allowed: s3://bucket or s3://bucket/prefix")
        if "@" in parts.netloc:
            # boto3 would take all of it for the bucket's name, and show it in its error.
            raise CheckpointError(
                f"store: {text!r} holds credentials; allowed: s3://bucket or s3://bucket/prefix, with the "
                "credentials in the environment of the pods (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)"
            )
        # Importing boto3 takes 0.3 s and 30 MB, which a job with local files does not need.
        from elastrec.checkpoints.stores.s3_store import S3Store

        return S3Store(parts.netloc, text.removeprefix(f"s3://{parts.netloc}").strip("/"))
    # Imported here, because jobs with local files do not need fsspec.
    from elastrec.checkpoints.stores.fsspec_store import SERVICES, FsspecStore

    if parts.scheme in SERVICES:
        if not parts.netloc:
            raise CheckpointError(f"store: {text!r} names no bucket, container or host; allowed: {ALLOWED}")
        return FsspecStore(text)
    hint = ""
    if parts.scheme == "hdfs":
        # WebHDFS uses another port of the name node, and needs neither Java nor Hadoop's native library.
        host = f"{parts.hostname or 'HOST'}:{_WEBHDFS_PORT}"
        user = f"{parts.username}@" if parts.username else ""
        hint = (
            f"; HDFS is reached by its web address: write webhdfs://{user}{host}{parts.path}, or swebhdfs:// with TLS"
        )
    raise CheckpointError(f"store: {text!r} has the scheme {parts.scheme!r}; allowed: {ALLOWED}{hint}")
