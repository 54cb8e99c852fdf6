"""Decoders of messages, files and summaries that several threads may be the first to use.

msgspec 0.22 ends the process with a segmentation fault if a second thread uses a class while the first one still
collects the types of its fields, which is when a decoder is made, or when `msgspec.json.decode` meets the class first.
"""

from __future__ import annotations

import threading
from typing import TypeVar

import msgspec

T = TypeVar("T")
_making = threading.Lock()


def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """A decoder, made by one thread at a time."""
    with _making:
        return msgspec.json.Decoder(kind)


def msgpack_decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]:
    """Likewise."""
    with _making:
        return msgspec.msgpack.Decoder(kind)
