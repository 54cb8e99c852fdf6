"""Checks that every sample is accounted for: the ledger, the records and the servers' restores must agree.

All results are computed from the raw attempts; the columns that the ledger derives from them are not used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elastrec.checkpoints import Term, open_record
from elastrec.platform.master.machine.phases import NUMBERS_PER_TERM
from elastrec.platform.specs.row_ranges import shard_order
from elastrec.platform.specs.splits import TRAINING_STREAM, Positions, StreamPositions
from elastrec.platform.transport.messages.ledger import Explanation

_ROLLED_BACK = re.compile(r"rolled back to (.*), generation (\d+)")
_RESTORED = re.compile(r"event=restored uri=(\S+) rows=(\d+) .*generation=(\d+)")
_RESTORED_NOTHING = re.compile(r"event=restored_from_nothing .*generation=(\d+)")

FIRST_JOURNAL: Mapping[int, str] = {0: ""}
"""Of a job whose journal was never lost."""


@dataclass(frozen=True)
class Size:
    """What is to be trained."""

    rows: int
    shard_rows: int
    epochs: int
    seed: int
    shuffle: bool = True

    @property
    def per_epoch(self) -> int:
        return -(-self.rows // self.shard_rows)

    def length(self, number: int) -> int:
        return min(self.shard_rows, self.rows - number % self.per_epoch * self.shard_rows)


@dataclass
class Accounts:
    """The result of the checks.

    Attributes:
        lost: rows that the final model has never seen.
        repeated: rows trained more than once, after rollbacks that discarded their first training.
        problems: contradictions, one sentence each.
    """

    lost: int = 0
    repeated: int = 0
    problems: list[str] = field(default_factory=list)


def rollbacks(story: Explanation) -> dict[int, str]:
    """URI of the record, empty for none, by the generation that began from it."""
    found = {}
    for entry in story.timeline:
        if match := _ROLLED_BACK.fullmatch(entry.what):
            found[int(match[2])] = "" if match[1] == "the beginning" else match[1]
    return found


def positions_of(uri: str) -> StreamPositions:
    """Which shards were how far when a record was made; an empty URI is the beginning."""
    if not uri:
        return StreamPositions(0, [])
    training = Positions.decode(open_record(uri).positions()).of(TRAINING_STREAM)
    assert training is not None, f"{uri} has no positions of the training stream"
    return training


def journals(terms: Iterable[Term]) -> dict[int, str]:
    """The record from which each journal of a job began: its URI, or "" for none, by the journal's first generation.

    Args:
        terms: of one launch of the job, in ascending order.
    """
    found: dict[int, str] = {}
    holder = ""
    for term in terms:
        if term.holder != holder:
            holder, found[(term.term - 1) * NUMBERS_PER_TERM] = term.holder, term.base
    return found


def check_ledger(
    attempts: Iterable[Mapping[str, Any]],
    story: Explanation,
    size: Size,
    read_positions: Callable[[str], StreamPositions] = positions_of,
    begun: Mapping[int, str] = FIRST_JOURNAL,
) -> Accounts:
    """Checks the training attempts of a job that succeeded, from the oldest to the newest.

    Each attempt must begin at the offset of its shard: the end of the previous attempt or, after a rollback, the offset
    in the restored record. This detects gaps, unreported repeats, and states that mix two records.

    After the loss of a journal, the ledger's lines show the contents of the record from which the next journal began,
    but no repeats. A record must not contain a row that is in no line.

    Args:
        begun: as returned by `journals`.
    """
    accounts = Accounts()
    bases = {**begun, **rollbacks(story)}
    positions = {generation: read_positions(uri) for generation, uri in bases.items()}
    stands = _standing(positions[min(begun)], size)
    generation, trained, missing = min(begun), 0, 0
    for line in sorted((a for a in attempts if a["kind"] == "train"), key=lambda line: line["generation"]):
        if line["generation"] not in positions:
            accounts.problems.append(f"generation {line['generation']} began without a rollback")
            return accounts
        while generation < line["generation"]:
            before, generation = generation, min(later for later in positions if later > generation)
            if generation not in begun and generation != before + 1:
                accounts.problems.append(f"generation {before + 1} began without a rollback")
                return accounts
            held, missing = _standing(positions[generation], size), 0
            if generation in begun:
                accounts.problems += _unaccounted(generation, held, stands)
            stands = held
        number = line["epoch"] * size.per_epoch + line["shard"]
        stood = stands.get(number, 0)
        if line["from"] != stood:
            accounts.problems.append(
                f"generation {generation}: attempt {line['attempt']} at shard {number} began at {line['from']}, but "
                f"the shard stood at {stood}"
            )
        missing += max(0, line["from"] - stood)
        stands[number] = line["to"]
        trained += line["to"] - line["from"]
    for later in sorted(later for later in positions if later > generation):
        held, missing = _standing(positions[later], size), 0
        if later in begun:
            accounts.problems += _unaccounted(later, held, stands)
        stands = held
    numbers = size.per_epoch * size.epochs
    seen = sum(stands.get(number, 0) for number in range(numbers)) - missing
    accounts.lost = size.rows * size.epochs - seen
    accounts.repeated = trained - seen
    if len(positions) == 1 and accounts.repeated:
        accounts.problems.append(f"{accounts.repeated} rows were repeated although nothing was rolled back")
    return accounts


def _unaccounted(generation: int, held: Mapping[int, int], known: Mapping[int, int]) -> list[str]:
    return [
        f"generation {generation} began with {offset} rows of shard {number}, of which the ledger has "
        f"{known.get(number, 0)}"
        for number, offset in sorted(held.items())
        if offset > known.get(number, 0)
    ]


def rows_reported(attempts: Iterable[Mapping[str, Any]]) -> int:
    """Trained rows that were reported to the master."""
    return sum(line["to"] - line["from"] for line in attempts if line["kind"] == "train")


def _standing(positions: StreamPositions, size: Size) -> dict[int, int]:
    """Rows that count, by shard number, where a record was made."""
    stands = {}
    for place in range(positions.cursor):
        epoch, within = divmod(place, size.per_epoch)
        index = int(shard_order(size.seed, epoch, size.per_epoch)[within]) if size.shuffle else within
        number = epoch * size.per_epoch + index
        stands[number] = size.length(number)
    return stands | {begun.number: begun.offset for begun in positions.begun}


def check_restores(
    logs: Sequence[Sequence[str]],
    story: Explanation,
    begun: Mapping[int, str] = FIRST_JOURNAL,
    *,
    is_fixed: bool = True,
) -> list[str]:
    """Checks that, in every generation, all servers restored the same record and, together, all of its rows.

    Args:
        is_fixed: whether the number of servers never changed, so that each of them must have restored the last
            generation.
        logs: by the index of the server: those of all its pods, the oldest first.
        begun: as returned by `journals`. For rollbacks that only a lost journal contained, the expected record is
            unknown.
    """
    problems = []
    wanted = {**begun, **rollbacks(story)}
    restored: dict[int, dict[int, tuple[str, int]]] = {}
    for index, pods in enumerate(logs):
        for text in pods:
            for match in _RESTORED.finditer(text):
                restored.setdefault(int(match[3]), {})[index] = (match[1], int(match[2]))
            for match in _RESTORED_NOTHING.finditer(text):
                restored.setdefault(int(match[1]), {})[index] = ("", 0)
    last = max(wanted)
    if is_fixed and (silent := sorted(set(range(len(logs))) - restored.get(last, {}).keys())):
        problems.append(f"generation {last}: servers {silent} do not say what they restored")
    for generation, found in sorted(restored.items()):
        uris = {uri for uri, _ in found.values()}
        if generation not in wanted and generation < max(begun) and len(uris) == 1:
            continue
        if uris != {wanted.get(generation, "no rollback")}:
            problems.append(f"generation {generation} restored {sorted(uris)}, wanted {wanted.get(generation)!r}")
        elif wanted[generation] and (len(found) == len(logs) if is_fixed else generation == last):
            rows = sum(rows for _, rows in found.values())
            held = sum(open_record(wanted[generation]).manifest.rows.values())
            if rows != held:
                problems.append(f"generation {generation}: the servers restored {rows} rows of {held}")
    return problems
