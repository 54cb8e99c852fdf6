"""Messages for the tests of the wire."""

from __future__ import annotations

import msgspec

from elastrec.platform.transport import new_token

TOKEN = new_token()


class Ask(msgspec.Struct, tag=True):
    """A call."""

    number: int


class AskArrays(msgspec.Struct, tag=True):
    """A request with arrays."""

    number: int


class Answered(msgspec.Struct, tag=True):
    number: int
