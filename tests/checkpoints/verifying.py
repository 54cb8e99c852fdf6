"""Verifies a record and its bases."""

from __future__ import annotations

from elastrec.checkpoints import Record


def verify(record: Record) -> int:
    """Reads and checks every array of a record and its bases; returns the number of sections.

    Raises:
        DamagedRecordError: something is damaged.
    """
    record.positions()
    return sum(1 for each in record.chain() for part in each.manifest.parts for _ in each.read(part, each.index(part)))
