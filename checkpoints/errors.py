"""The errors of this package: a damaged record, and a store that does not answer."""

from __future__ import annotations

from elastrec.platform.specs.errors import CheckpointError


class DamagedRecordError(CheckpointError):
    """A record is incomplete or its bytes are not those that were written: skip it and use another."""


class StoreError(CheckpointError):
    """The store could not be asked, or refused: that says nothing about its records, and a later try may succeed."""


class NotConditionalError(StoreError):
    """The store does not know conditional puts, and has written nothing."""
