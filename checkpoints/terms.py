"""Terms of a job determine which master may direct, commit and prune. A term is a numbered file that is created once.

`{store}/{job name}/terms/{job id}/{number:08d}.json` is written with put-if-absent and never deleted: if several
masters try to take a number, one gets it, and a higher number supersedes all lower ones. If a file were deleted, its
number could be taken again; therefore, no code deletes these files, including pruning.

The same folder contains `launch.json`, with the parameters of the job's last launch, which are opaque here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
import structlog

from elastrec.checkpoints.errors import StoreError
from elastrec.checkpoints.stores.store import Store, open_store
from elastrec.platform.specs.errors import CheckpointError

_log = structlog.get_logger(__name__)

_CONCLUDED_FILE = "concluded.json"
_LAUNCH_FILE = "launch.json"
_NUMBER = re.compile(r"(\d{8})\.json")
_HIGHEST = 99_999_999
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 5.0


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """The term of one master.

    Attributes:
        term: its number, from 1.
        holder: a random text per journal, by which a master that was killed, or that did not get the answer of the
            store, recognises its own file.
        address: `host:port` of the holder.
        base: URI of the record from which the term continues; empty: none.
        positions: shard states at the beginning, as in the record, opaque; empty: the first row, or the state of the
            same holder's journal.
        started: ISO 8601, for people.
    """

    term: int
    holder: str
    address: str
    base: str = ""
    positions: str = ""
    started: str = ""


class SupersededError(CheckpointError):
    """A later master has taken the job over; this one must not commit or delete anything any more."""


def terms_folder(job_name: str, job_id: str) -> str:
    """Key of the folder with the terms of one job."""
    return f"{job_name}/terms/{job_id}"


def list_terms(store: str | Store, job_name: str, job_id: str, after: int = 0) -> list[Term]:
    """The terms of a job above `after`, the lowest one first.

    Raises:
        StoreError: the store could not be asked.
    """
    opened = open_store(store)
    return [_read(opened, key) for key in _keys(opened, job_name, job_id) if _number(key) > after]


def newest_term(store: str | Store, job_name: str, job_id: str) -> Term | None:
    """The current term; None if the job has never had one.

    Raises:
        StoreError: the store could not be asked.
    """
    opened = open_store(store)
    keys = _keys(opened, job_name, job_id)
    return _read(opened, keys[-1]) if keys else None


def check_term(store: str | Store, job_name: str, job_id: str, term: int, holder: str) -> None:
    """Checks that no other master has taken a term above `term`, or `term` itself.

    A higher term of the same holder is allowed: the holder was killed before it could record that it had taken it. Only
    in a store without conditional puts, another master can replace the file of `term`; then the last writer has it.

    Raises:
        SupersededError: another master has taken a higher term, or this one.
        StoreError: the store could not be asked.
    """
    newest = newest_term(store, job_name, job_id)
    if newest is None or newest.holder == holder:
        return
    # A damaged file names no holder; with this master's number, it is its own.
    if newest.term > term or (newest.term == term and newest.holder):
        raise _superseded(job_id, newest, term)


def _is_of(term: Term, holder: str, address: str) -> bool:
    return (term.holder, term.address) == (holder, address)


def _superseded(job_id: str, newest: Term, term: int) -> SupersededError:
    return SupersededError(
        f"job {job_id}: the master at {newest.address} has taken term {newest.term}; this one had term {term}"
    )


def take_term(
    store: str | Store,
    job_name: str,
    job_id: str,
    *,
    holder: str,
    address: str,
    base: Callable[[], str],
    positions: Callable[[], str] = lambda: "",
    wait: Callable[[float], object] = time.sleep,
    after: int = 0,
) -> Term:
    """Takes the next term, or the holder's newest term if it has the same address. Waits until the store answers.

    Args:
        base: returns the URI of the record to continue from; called again whenever another master was faster, and when
            the term is taken: until then, an earlier master can commit a newer record and delete this one. The next
            term is taken then.
        positions: returns the shard states of that record; called after `base`.
        wait: called with the seconds between two tries; an exception ends the tries.
        after: the last term that the journal of the holder contains; 0: none. A later term of another master
            supersedes the holder.

    Raises:
        SupersededError: see `after`.
        CheckpointError: the store refuses, or there are no numbers left.
    """
    opened = open_store(store)
    pause, tried = _FIRST_PAUSE_SECONDS, ""
    while True:
        try:
            # The answer of the store is not used: it may be lost, and a refused try may have had a competitor that
            # failed, too. The file names its holder.
            attempted = _read(opened, tried) if tried and opened.exists(tried) else None
            newest, tried = newest_term(opened, job_name, job_id), ""
            own = next((one for one in (attempted, newest) if one and _is_of(one, holder, address)), None)
            if own is not None and own.base == base():
                # This master may have been killed while it wrote the file.
                opened.drop_unfinished(f"{terms_folder(job_name, job_id)}/{own.term:08d}.json")
                return own
            if after and newest is not None and newest.term > after and newest.holder not in ("", holder):
                raise _superseded(job_id, newest, after)
            number = 1 if newest is None else newest.term + 1
            if number > _HIGHEST:
                raise CheckpointError(f"job {job_id}: term {number} is not allowed; allowed: 1 to {_HIGHEST}")
            term = Term(
                term=number,
                holder=holder,
                address=address,
                base=base(),
                positions=positions(),
                started=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            tried = f"{terms_folder(job_name, job_id)}/{number:08d}.json"
            _put(opened, tried, msgspec.json.encode(term))
            pause = _FIRST_PAUSE_SECONDS
        except StoreError as error:
            _log.warning("term_waits_for_store", job=job_id, reason=str(error), next_try_seconds=pause)
            wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def conclude(store: str | Store, job_name: str, job_id: str) -> None:
    """Records that a job is finished; a later launch with the same id does not continue it.

    Raises:
        CheckpointError: the store refused.
    """
    opened = open_store(store)
    if (newest := newest_term(opened, job_name, job_id)) is not None:
        opened.put(f"{terms_folder(job_name, job_id)}/{_CONCLUDED_FILE}", msgspec.json.encode(newest.term))


def concluded_term(store: str | Store, job_name: str, job_id: str) -> int:
    """The last term of the job's finished runs (see `conclude`); 0 if there are none.

    Raises:
        CheckpointError: the store could not be asked, or the file is damaged.
    """
    opened = open_store(store)
    key = f"{terms_folder(job_name, job_id)}/{_CONCLUDED_FILE}"
    data = opened.get_if_exists(key)
    try:
        return 0 if data is None else msgspec.json.decode(data, type=int)
    except msgspec.MsgspecError as error:
        raise CheckpointError(f"{opened.child_uri(key)}: it cannot be read: {error}") from error


def write_launch(store: str | Store, job_name: str, job_id: str, launch: bytes) -> None:
    """Stores the parameters of a launch; replaces those of an earlier launch of the job.

    Raises:
        CheckpointError: the store refused.
    """
    opened = open_store(store)
    opened.put(f"{terms_folder(job_name, job_id)}/{_LAUNCH_FILE}", launch)


def read_launch(store: str | Store, job_name: str, job_id: str) -> bytes | None:
    """The parameters that `write_launch` stored last; None if the job was never launched.

    Raises:
        CheckpointError: the store could not be asked.
    """
    opened = open_store(store)
    return opened.get_if_exists(f"{terms_folder(job_name, job_id)}/{_LAUNCH_FILE}")


def launched_jobs(store: str | Store, job_name: str) -> list[str]:
    """Ids of the jobs of a name that have terms or were launched, sorted.

    Raises:
        CheckpointError: the store could not be asked.
    """
    opened = open_store(store)
    return opened.folders(f"{job_name}/terms")


def _put(store: Store, key: str, data: bytes) -> None:
    if store.conditional_writes():
        store.put_if_absent(key, data)
        return
    _log.warning(
        "store without conditional puts", store=store.uri, consequence="two masters of a job could take the same term"
    )
    if not store.exists(key):
        store.put(key, data)


def _keys(store: Store, job_name: str, job_id: str) -> list[str]:
    folder = terms_folder(job_name, job_id)
    return [key for key in store.keys(folder) if _NUMBER.fullmatch(key.removeprefix(f"{folder}/"))]


def _number(key: str) -> int:
    return int(key.rpartition("/")[2].removesuffix(".json"))


def _read(store: Store, key: str) -> Term:
    number = _number(key)
    try:
        term = msgspec.json.decode(store.get_if_exists(key) or b"", type=Term)
    except msgspec.MsgspecError as error:
        # The number counts as taken, so that no later master takes it again.
        _log.warning("term_damaged", term=store.child_uri(key), reason=str(error))
        return Term(term=number, holder="", address="")
    return msgspec.structs.replace(term, term=number)


__all__ = [
    "SupersededError",
    "Term",
    "check_term",
    "conclude",
    "concluded_term",
    "launched_jobs",
    "list_terms",
    "newest_term",
    "read_launch",
    "take_term",
    "terms_folder",
    "write_launch",
]
