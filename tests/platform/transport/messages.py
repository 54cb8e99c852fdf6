"""What the tests of the wire say."""

from __future__ import annotations

import msgspec


class Ask(msgspec.Struct, tag=True):
    """A call."""

    number: int


class AskArrays(msgspec.Struct, tag=True):
    """A request with arrays."""

    number: int


class Told(msgspec.Struct, tag=True):
    number: int
