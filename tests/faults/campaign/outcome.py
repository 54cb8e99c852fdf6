"""What one run of a campaign came to: a plain value, one line of JSON."""

from __future__ import annotations

import msgspec


class Outcome(msgspec.Struct, kw_only=True):
    """What one run came to. `problems` is empty when everything held.

    Attributes:
        faults: those that were inflicted, by name; a job may end before its last ones.
        plans: for other pods that arrived, and what the master said to them.
        requests: what became of each as far as its master reported; one that lost its journal forgets them.
        migrations: how often buckets have changed servers; pauses: seconds of each hand-over.
        records: pairs of records that follow each other without a rollback, the later one compared with the earlier.
        recoveries: seconds, one per strike.
        auc: on the evaluation rows, of the exported model.
        in_flight: rows that servers applied but the master never learned of, because the worker that sent them was
            lost or dropped them: done again by another. None where it cannot be counted (after a rollback).
        in_flight_allowed: what was in flight at most when the faults came.
        generations: rollbacks since a journal was lost last, and journals that were lost.
    """

    seed: int
    number: int
    shape: str
    plan: list[str] = []
    faults: list[str] = []
    plans: list[str] = []
    requests: list[str] = []
    migrations: int = 0
    pauses: list[float] = []
    records: int = 0
    recoveries: list[float] = []
    problems: list[str] = []
    lost: int = 0
    repeated: int = 0
    in_flight: int | None = None
    in_flight_allowed: int = 0
    auc: float = 0.0
    generations: int = 0
    seconds: float = 0.0
