"""The errors of this package: a damaged record, and a store that does not answer."""

from __future__ import annotations

from elastrec.platform.specs.errors import CheckpointError


class DamagedRecordError(CheckpointError):
    """A record is incomplete, or its bytes are not those that were written; another record must be used.

    Attributes:
        record: URI of the damaged one, if it is one on which the opened record builds; otherwise empty.
    """

    record: str = ""


class StoreError(CheckpointError):
    """The store is not reachable or refused. This does not mean that its records are damaged, and a retry may
    succeed."""


class DroppedError(StoreError):
    """Another writer has completed the object, and has deleted what this one had written of it."""


class NotConditionalError(StoreError):
    """The store does not support conditional puts, and has written nothing."""
