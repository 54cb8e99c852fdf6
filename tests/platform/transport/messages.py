"""A question and its answer, for tests that only need some."""

from __future__ import annotations

import msgspec


class Ask(msgspec.Struct, tag=True):
    number: int


class Told(msgspec.Struct, tag=True):
    number: int
