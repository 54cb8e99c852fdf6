"""GuardedObject: a small object that a call replaces only if nobody else has replaced it meanwhile.

In S3 the store itself compares versions (`If-Match`), so that a call that was suspended at any point cannot undo the
work of a later one. pyarrow's file systems offer no such condition, so S3 is asked by boto3; for other stores there is
none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import structlog

from elastrec.platform.data.files import write_bytes
from elastrec.platform.specs.errors import DataError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_log = structlog.get_logger()
_MISSING = ("404", "NoSuchKey", "NotFound")
_REPLACED = ("412", "PreconditionFailed", *_MISSING)
_UNSUPPORTED = ("501", "NotImplemented")
_HOLDER = "holder"
"""The object's metadata that names the call that wrote it."""


class ReplacedError(DataError):
    """Another call has replaced the object; nothing was written."""


class GuardedObject:
    """An object at a URI; a local file or an object of another store than S3 is written without a condition.

    Args:
        holder: identifies the call.

    Raises:
        DataError: S3 cannot be reached.
    """

    def __init__(self, uri: str, holder: str) -> None:
        self._uri, self._holder = uri, holder
        self._client: S3Client | None = None
        self._version: str | None = None
        parts = urlsplit(uri)
        if parts.scheme == "s3":
            self._place: Any = {"Bucket": parts.netloc.rpartition("@")[2], "Key": parts.path.lstrip("/")}
            self._client = _client(parts.username, parts.password)
            self._version, _ = self._look()

    def replace(self, content: bytes) -> None:
        """Writes the object.

        Raises:
            ReplacedError: it is not the one that was there when this was made, or that this call has written.
            DataError: it cannot be written; perhaps it was.
        """
        if self._client is None:
            write_bytes(self._uri, content)
            return
        from botocore.exceptions import BotoCoreError, ClientError

        condition: Any = {"IfMatch": self._version} if self._version is not None else {"IfNoneMatch": "*"}
        whole: Any = {**self._place, "Body": content, "Metadata": {_HOLDER: self._holder}}
        try:
            try:
                answer = self._client.put_object(**whole, **condition)
            except ClientError as error:
                if _code(error) not in _UNSUPPORTED:
                    raise
                _log.warning("store without conditional writes", object=self._uri, reason=str(error))
                answer = self._client.put_object(**whole)
            self._version = answer["ETag"]
        except ClientError as error:
            if _code(error) not in _REPLACED:
                raise DataError(f"{self._uri}: cannot be written ({error})") from error
            # The client repeats a request whose answer was lost, and the repetition meets the object of the first one.
            self._version, holder = self._look()
            if holder != self._holder:
                raise ReplacedError(f"{self._uri}: was replaced by another call") from error
        except BotoCoreError as error:
            raise DataError(f"{self._uri}: cannot be written ({error})") from error

    def _look(self) -> tuple[str | None, str]:
        """The version of the object, None if there is none, and the call that wrote it."""
        from botocore.exceptions import BotoCoreError, ClientError

        assert self._client is not None
        try:
            answer: Any = self._client.head_object(**self._place)
        except (ClientError, BotoCoreError) as error:
            if isinstance(error, ClientError) and _code(error) in _MISSING:
                return None, ""
            raise DataError(f"{self._uri}: cannot be read ({error})") from error
        return answer["ETag"], answer.get("Metadata", {}).get(_HOLDER, "")


def _client(user: str | None, password: str | None) -> S3Client:
    # Importing boto3 takes 0.3 s, which calls with local files do not need.
    import boto3
    from botocore.config import Config

    keys: Any = {}
    if user and password:
        keys = {"aws_access_key_id": unquote(user), "aws_secret_access_key": unquote(password)}
    # As for checkpoints: many S3-compatible stores refuse the newer checksums in trailers.
    config = Config(
        retries={"mode": "standard", "max_attempts": 5},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return boto3.client("s3", config=config, **keys)


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
