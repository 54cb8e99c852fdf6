"""The result of one run of a campaign, as one line of JSON."""

from __future__ import annotations

import msgspec


class Outcome(msgspec.Struct, kw_only=True):
    """The result of one run. `problems` is empty if all checks passed.

    Attributes:
        faults: names of the faults that were inflicted; a job may end before the last ones.
        plans: requests for other pods that reached the master, and its answers.
        requests: outcomes of the requests as reported by the master, which forgets them if it loses its journal.
        migrations: number of times that buckets changed servers; pauses: seconds of each hand-over.
        records: number of pairs of consecutive records without a rollback in between, which were compared.
        recoveries: seconds, one per strike.
        auc: on the evaluation rows, of the exported model.
        in_flight: rows that servers applied but no worker reported, because the worker was lost or dropped them;
            another worker trains them again. None if they cannot be counted (after a rollback).
        in_flight_allowed: upper bound of `in_flight` for the faults of this run.
        generations: number of rollbacks since the last loss of a journal, plus the number of lost journals.
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
