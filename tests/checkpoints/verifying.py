"""Reads all that a record stands for."""

from __future__ import annotations

from elastrec.checkpoints import Record


def verify(record: Record) -> int:
    """Reads every array and checks it, of the records that it builds on, too; returns how many sections there are.

    Raises:
        DamagedRecordError: something is damaged.
    """
    record.positions()
    return sum(1 for each in record.chain() for part in each.manifest.parts for _ in each.read(part, each.index(part)))
