"""The one error that this package tells apart from the rest: a record is bad, not the store."""

from __future__ import annotations

from elastrec.platform.specs.errors import CheckpointError


class DamagedRecordError(CheckpointError):
    """A record is incomplete or its bytes are not those that were written: skip it and use another.

    Every other CheckpointError means that the store could not be asked, which says nothing about the record.
    """
