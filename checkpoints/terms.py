"""Terms of a job: which master may direct, commit and prune, kept apart by numbered files that are created once.

`{store}/{job name}/terms/{job id}/{number:08d}.json` is written with put-if-absent and never deleted: of several
masters that want a number one gets it, and a higher number supersedes all lower ones. A number whose file was deleted
could be taken a second time; so nothing here, and nothing that prunes, deletes one.

Beside them lies `launch.json`, opaque here: with what the job was launched last.
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
    """One master's time in office.

    Attributes:
        term: its number, from 1.
        holder: random, one per journal: by it a master that was killed, or that never got the answer of the store,
            knows its own file.
        address: `host:port` at which the holder is reached.
        base: URI of the record that the term continues from; empty: none.
        positions: of the shards where it began, as the record keeps them, opaque; empty: at the first row, or where
            the same holder's journal stood.
        started: ISO 8601, for people.
    """

    term: int
    holder: str
    address: str
    base: str = ""
    positions: str = ""
    started: str = ""


class SupersededError(CheckpointError):
    """A later master has taken the job over: this one must neither commit nor delete anything any more."""


def terms_folder(job_name: str, job_id: str) -> str:
    """Key of the folder with the terms of one job."""
    return f"{job_name}/terms/{job_id}"


def list_terms(store: str | Store, job_name: str, job_id: str, after: int = 0) -> list[Term]:
    """The terms of a job above `after`, the lowest one first.

    Raises:
        StoreError: the store could not be asked.
    """
    opened = open_store(store) if isinstance(store, str) else store
    return [_read(opened, key) for key in _keys(opened, job_name, job_id) if _number(key) > after]


def newest_term(store: str | Store, job_name: str, job_id: str) -> Term | None:
    """The term in force; None when the job has never had one.

    Raises:
        StoreError: the store could not be asked.
    """
    opened = open_store(store) if isinstance(store, str) else store
    keys = _keys(opened, job_name, job_id)
    return _read(opened, keys[-1]) if keys else None


def check_term(store: str | Store, job_name: str, job_id: str, term: int, holder: str) -> None:
    """Returns while no other master has taken a term above `term`.

    A higher one of the same holder is its own: it was killed before it could note that it had taken it.

    Raises:
        SupersededError: another master has.
        StoreError: the store could not be asked.
    """
    newest = newest_term(store, job_name, job_id)
    if newest is not None and newest.term > term and newest.holder != holder:
        raise SupersededError(
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
) -> Term:
    """Takes the next term, however long the store is away; the holder's newest one if it has the same address.

    Args:
        base: URI of the record to continue from; asked anew whenever another master was faster.
        positions: asked after `base`: where the shards stand there.
        wait: passes the seconds between two tries; an exception of it ends the tries.

    Raises:
        CheckpointError: the store refuses, or there are no numbers left.
    """
    opened = open_store(store) if isinstance(store, str) else store
    pause, tried = _FIRST_PAUSE_SECONDS, ""
    while True:
        try:
            # What the store answered to a try does not count: an answer may be lost, and a refusal may be of a try
            # whose rival failed, too. Whose the file is stands in it.
            attempted = _read(opened, tried) if tried and opened.exists(tried) else None
            newest, tried = newest_term(opened, job_name, job_id), ""
            for own in (attempted, newest):
                if own is not None and (own.holder, own.address) == (holder, address):
                    return own
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
    """Says that the run of a job is over for good: a later one under the same id continues nothing of it.

    Raises:
        CheckpointError: the store refused.
    """
    opened = open_store(store) if isinstance(store, str) else store
    if (newest := newest_term(opened, job_name, job_id)) is not None:
        opened.put(f"{terms_folder(job_name, job_id)}/{_CONCLUDED_FILE}", msgspec.json.encode(newest.term))


def concluded_term(store: str | Store, job_name: str, job_id: str) -> int:
    """The last term of the job's runs that are over for good (see `conclude`); 0: there is none.

    Raises:
        CheckpointError: the store could not be asked, or the file is damaged.
    """
    opened = open_store(store) if isinstance(store, str) else store
    key = f"{terms_folder(job_name, job_id)}/{_CONCLUDED_FILE}"
    data = opened.get_if_exists(key)
    try:
        return 0 if data is None else msgspec.json.decode(data, type=int)
    except msgspec.MsgspecError as error:
        raise CheckpointError(f"{opened.child_uri(key)}: it cannot be read: {error}") from error


def write_launch(store: str | Store, job_name: str, job_id: str, launch: bytes) -> None:
    """Keeps with what a job is about to be launched; replaces what an earlier launch of it has left.

    Raises:
        CheckpointError: the store refused.
    """
    opened = open_store(store) if isinstance(store, str) else store
    opened.put(f"{terms_folder(job_name, job_id)}/{_LAUNCH_FILE}", launch)


def read_launch(store: str | Store, job_name: str, job_id: str) -> bytes | None:
    """What `write_launch` kept last; None when the job was never launched.

    Raises:
        CheckpointError: the store could not be asked.
    """
    opened = open_store(store) if isinstance(store, str) else store
    return opened.get_if_exists(f"{terms_folder(job_name, job_id)}/{_LAUNCH_FILE}")


def launched_jobs(store: str | Store, job_name: str) -> list[str]:
    """Ids of the jobs of a name that have terms or were launched, sorted.

    Raises:
        CheckpointError: the store could not be asked.
    """
    opened = open_store(store) if isinstance(store, str) else store
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
        # The number counts as taken: no later master may take it again.
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
