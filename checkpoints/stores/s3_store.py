"""The store under a prefix of an S3 bucket, by boto3, with conditional puts (`If-None-Match: *`)."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import structlog
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from elastrec.checkpoints.errors import NotConditionalError, StoreError
from elastrec.checkpoints.stores.store import Store, StoreWriter, checked_key
from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.specs.text.whole_file import HIDDEN

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from typing_extensions import Buffer

_log = structlog.get_logger(__name__)

UPLOAD_PART_BYTES = 8 * 2**20
"""Size of the first parts of an object; S3 allows 5 MiB to 5 GiB."""
UPLOADS_SIDE_BY_SIDE = 4
_SENT_PER_PART = 1024
"""A part has at least the size of all parts before it, divided by this. So S3's largest object, 5 TiB, has 7,700
parts of at most 5 GiB, where S3 allows 10,000, and parts in memory are a small share of what is written."""

_CONNECTIONS = 32
"""Of a client to one host, kept open: the threads that read, write and list records at the same time."""
_MISSING = ("404", "NoSuchKey", "NotFound")
_NOT_IMPLEMENTED = ("501", "NotImplemented")
_NOT_ALLOWED = ("403", "AccessDenied", *_NOT_IMPLEMENTED)
_BEYOND_END = ("416", "InvalidRange")
"""The range begins at or after the object's end; one that only ends after it gives the bytes up to the end."""
_LOST_RACE = ("412", "PreconditionFailed")
_CONFLICT = ("409", "ConditionalRequestConflict")
"""Another request for the object is in progress and its result is open, so the request must be repeated."""
_CONFLICT_PAUSES_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8)


_making = threading.Lock()
_FILES = (("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"), ("AWS_CONFIG_FILE", "~/.aws/config"))
"""By the variable that names it: a file that sessions read once, although its credentials may expire."""


def _client() -> S3Client:
    """This process's client for the present environment and files of credentials.

    A new one takes 5 ms and new connections, and a listing of records opens a store for each of them, in several
    threads. Any thread may use a client, but boto3's sessions make one at a time.
    """
    environment = tuple(sorted(variable for variable in os.environ.items() if variable[0].startswith("AWS_")))
    with _making:
        return _made_client(os.getpid(), environment, tuple(_version(*each) for each in _FILES))


def _version(variable: str, usual: str) -> tuple[int, ...]:
    """What differs once a file was written again or replaced; empty: there is none."""
    try:
        found = Path(os.environ.get(variable) or usual).expanduser().stat()
    except (OSError, RuntimeError):  # RuntimeError: nobody knows the home folder
        return ()
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


@functools.lru_cache(maxsize=4)
def _made_client(
    process: int, environment: tuple[tuple[str, str], ...], files: tuple[tuple[int, ...], ...]
) -> S3Client:
    """A new client, with the credentials of a session of its own; the arguments only tell clients apart."""
    return boto3.session.Session().client(
        "s3",
        config=Config(
            retries={"mode": "standard", "max_attempts": 5},
            connect_timeout=10,
            read_timeout=60,
            max_pool_connections=_CONNECTIONS,
            # Many S3-compatible stores refuse the newer checksums in trailers.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


@contextmanager
def _explained(what: str, where: str) -> Iterator[None]:
    try:
        yield
    except (ClientError, BotoCoreError) as error:
        if isinstance(error, ClientError) and _code(error) == "NoSuchKey":
            raise CheckpointError(f"{where}: there is no such object in the checkpoint store") from error
        raise StoreError(
            f"{what} {where}: {error}; check bucket, AWS_ENDPOINT_URL_S3 and the credentials in the environment"
        ) from error


class _S3Writer(StoreWriter):
    def __init__(self, client: S3Client, bucket: str, key: str) -> None:
        self._client, self._bucket, self._key = client, bucket, key
        self._buffer = bytearray()
        self._part_bytes = UPLOAD_PART_BYTES
        self._sent_bytes = 0
        self._upload_id: str | None = None
        self._parts: list[Future[dict[str, Any]]] = []
        self._senders: ThreadPoolExecutor | None = None
        self._open = True

    @property
    def _where(self) -> str:
        return f"s3://{self._bucket}/{self._key}"

    def write(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        while view:
            room = self._part_bytes - len(self._buffer)
            self._buffer += view[:room]
            view = view[room:]
            if len(self._buffer) >= self._part_bytes:
                self._send_part()

    def _send_part(self) -> None:
        """Passes the buffer to a thread; waits while the maximum number of parts is being sent."""
        with _explained("could not write", self._where):
            if self._senders is None:
                answer = self._client.create_multipart_upload(Bucket=self._bucket, Key=self._key)
                self._upload_id = answer["UploadId"]
                self._senders = ThreadPoolExecutor(UPLOADS_SIDE_BY_SIDE, "s3-upload")
            if len(self._parts) >= UPLOADS_SIDE_BY_SIDE:
                # The first failure ends the object, because the following parts would be sent in vain.
                self._parts[-UPLOADS_SIDE_BY_SIDE].result()
            self._parts.append(self._senders.submit(self._upload, len(self._parts) + 1, self._buffer))
        self._sent_bytes += len(self._buffer)
        self._part_bytes = max(UPLOAD_PART_BYTES, self._sent_bytes // _SENT_PER_PART)
        self._buffer = bytearray()

    def _upload(self, number: int, body: bytearray) -> dict[str, Any]:
        assert self._upload_id is not None
        part = self._client.upload_part(
            Bucket=self._bucket,
            Key=self._key,
            UploadId=self._upload_id,
            PartNumber=number,
            Body=body,  # type: ignore[arg-type]
        )
        return {"PartNumber": number, "ETag": part["ETag"]}

    def _end_senders(self) -> None:
        """Cancels waiting parts, and waits for parts that are being sent, because S3 keeps parts that arrive after the
        end."""
        if self._senders is not None:
            self._senders.shutdown(cancel_futures=True)
            self._senders = None

    def close(self) -> None:
        if not self._open:
            return
        try:
            if self._upload_id is None:
                with _explained("could not write", self._where):
                    self._client.put_object(Bucket=self._bucket, Key=self._key, Body=bytes(self._buffer))
            else:
                if self._buffer:
                    self._send_part()
                with _explained("could not write", self._where):
                    parts: Any = [part.result() for part in self._parts]
                    self._client.complete_multipart_upload(
                        Bucket=self._bucket, Key=self._key, UploadId=self._upload_id, MultipartUpload={"Parts": parts}
                    )
                self._end_senders()
            self._open = False
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        if self._open and self._upload_id is not None:
            self._end_senders()
            try:
                self._client.abort_multipart_upload(Bucket=self._bucket, Key=self._key, UploadId=self._upload_id)
            except (ClientError, BotoCoreError) as error:
                # The caller is already failing; an unfinished upload is invisible and ends with its record.
                _log.warning("upload not aborted", object=self._where, error=str(error))
        self._open = False
        self._buffer.clear()


class S3Store(Store):
    """Objects under `s3://bucket/prefix`.

    Args:
        bucket: must exist.
        prefix: without slashes at its ends; empty for the whole bucket.
        client: for tests; else that of this process, from boto3's environment.
    """

    def __init__(self, bucket: str, prefix: str = "", client: S3Client | None = None) -> None:
        self._bucket, self._prefix = bucket, prefix
        self.uri = f"s3://{bucket}/{prefix}" if prefix else f"s3://{bucket}"
        if client is None:
            with _explained("could not make a client for", self.uri):
                client = _client()
        self._client = client

    def _key(self, key: str) -> str:
        checked_key(key)
        return f"{self._prefix}/{key}" if self._prefix else key

    def _folder(self, prefix: str) -> str:
        if prefix:
            return self._key(prefix) + "/"
        return f"{self._prefix}/" if self._prefix else ""

    def open_write(self, key: str) -> StoreWriter:
        return _S3Writer(self._client, self._bucket, self._key(key))

    def get(self, key: str) -> bytes:
        with _explained("could not read", self.child_uri(key)):
            return self._client.get_object(Bucket=self._bucket, Key=self._key(key))["Body"].read()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        if length == 0:
            return b""
        with _explained("could not read", self.child_uri(key)):
            try:
                answer = self._client.get_object(
                    Bucket=self._bucket, Key=self._key(key), Range=f"bytes={start}-{start + length - 1}"
                )
                data = answer["Body"].read()
            except ClientError as error:
                if _code(error) not in _BEYOND_END:
                    raise
                data = b""
        if len(data) != length:
            raise CheckpointError(
                f"{self.child_uri(key)}: asked for {length} bytes from {start}, the store gave {len(data)}"
            )
        return data

    def size(self, key: str) -> int | None:
        with _explained("could not look at", self.child_uri(key)):
            try:
                return int(self._client.head_object(Bucket=self._bucket, Key=self._key(key))["ContentLength"])
            except ClientError as error:
                if _code(error) in _MISSING:
                    return None
                raise

    def keys(self, prefix: str = "") -> list[str]:
        return [key for key in self._keys(prefix) if not key.rpartition("/")[2].startswith(HIDDEN)]

    def _keys(self, prefix: str) -> list[str]:
        skip = len(f"{self._prefix}/") if self._prefix else 0
        keys: list[str] = []
        with _explained("could not list", f"{self.uri}/{prefix}"):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._folder(prefix)
            )
            for page in pages:
                keys += [item["Key"][skip:] for item in page.get("Contents", [])]
        return sorted(keys)

    def folders(self, prefix: str = "") -> list[str]:
        start = self._folder(prefix)
        folders: list[str] = []
        with _explained("could not list", f"{self.uri}/{prefix}"):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=start, Delimiter="/"
            )
            for page in pages:
                folders += [item["Prefix"][len(start) : -1] for item in page.get("CommonPrefixes", [])]
        return sorted(folders)

    def delete(self, key: str) -> None:
        with _explained("could not delete", self.child_uri(key)):
            self._client.delete_object(Bucket=self._bucket, Key=self._key(key))

    def _uploads(self, prefix: str) -> list[tuple[str, str]]:
        """(full key, upload id) of the multipart uploads below a prefix that were not completed."""
        uploads: list[tuple[str, str]] = []
        try:
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self._bucket, Prefix=self._folder(prefix)
            )
            for page in pages:
                uploads += [(item["Key"], item["UploadId"]) for item in page.get("Uploads", [])]
        except ClientError as error:
            if _code(error) not in _NOT_ALLOWED:
                raise
            # Complete records must be prunable nevertheless, so this is only logged.
            _log.warning(
                "unfinished uploads not listed", store=self.uri, reason=str(error),
                consequence="what killed writers have uploaded stays until a rule of the bucket removes it; allow "
                "s3:ListBucketMultipartUploads and s3:AbortMultipartUpload",
            )  # fmt: skip
        return uploads

    def unfinished(self, prefix: str = "") -> list[str]:
        skip = len(f"{self._prefix}/") if self._prefix else 0
        with _explained("could not list", f"{self.uri}/{prefix}"):
            return sorted({key[skip:] for key, _ in self._uploads(prefix)})

    def delete_unfinished(self, prefix: str) -> None:
        with _explained("could not delete", f"{self.uri}/{prefix}"):
            for key, upload in self._uploads(prefix):
                try:
                    self._client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload)
                except ClientError as error:
                    if _code(error) != "NoSuchUpload":
                        raise

    def delete_tree(self, prefix: str) -> None:
        self.delete_unfinished(prefix)
        keys = [self._key(key) for key in self._keys(prefix)]
        for first in range(0, len(keys), 1000):
            with _explained("could not delete", f"{self.uri}/{prefix}"):
                answer = self._client.delete_objects(
                    Bucket=self._bucket, Delete={"Objects": [{"Key": key} for key in keys[first : first + 1000]]}
                )
            if errors := answer.get("Errors"):
                raise CheckpointError(
                    f"could not delete {len(errors)} objects in {self.uri}/{prefix}, first: {errors[0]}"
                )

    def _create(self, key: str, data: Buffer) -> bool:
        with _explained("could not write", self.child_uri(key)):
            for pause in (*_CONFLICT_PAUSES_SECONDS, None):
                try:
                    self._client.put_object(Bucket=self._bucket, Key=self._key(key), Body=bytes(data), IfNoneMatch="*")
                    return True
                except ClientError as error:
                    if _code(error) in _LOST_RACE:
                        return False
                    if _code(error) in _NOT_IMPLEMENTED:
                        raise NotConditionalError(f"{self.child_uri(key)}: {error}") from error
                    if _code(error) not in _CONFLICT or pause is None:
                        raise
                    time.sleep(pause)
            raise AssertionError("the last try returns or raises")

    @property
    def _place(self) -> str:
        return f"{self._client.meta.endpoint_url} {self._bucket}"

    def get_if_exists(self, key: str) -> bytes | None:
        with _explained("could not read", self.child_uri(key)):
            try:
                return self._client.get_object(Bucket=self._bucket, Key=self._key(key))["Body"].read()
            except ClientError as error:
                if _code(error) in _MISSING:
                    return None
                raise
