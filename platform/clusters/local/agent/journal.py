"""The journal of the node agent: pods, events and a few facts about itself, in SQLite (write-ahead log)."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import structlog

from elastrec.platform.clusters.local.agent.pod_life import PodRecord
from elastrec.platform.clusters.pods import PodEventKind, PodStatus
from elastrec.platform.specs.errors import ClusterError

log = structlog.get_logger(__name__)
KEPT_EVENTS = 10_000
_MOST_EVENTS = 1_000
"""Maximum number of events in one answer."""
_NO_ROOM = frozenset({"SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE"})
_PAUSE_SECONDS = 0.5
_ORIGIN = "events_origin"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS pods (
    position INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT NOT NULL UNIQUE, record BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS events (version INTEGER PRIMARY KEY, job TEXT NOT NULL, event BLOB NOT NULL);
"""


class KeptEvent(msgspec.Struct, frozen=True):
    """An event of a pod; versions increase by one."""

    kind: PodEventKind
    pod: PodStatus
    version: int


class DamagedJournalError(ClusterError):
    """The file is not a valid journal."""


class Journal:
    """One file; the caller serialises the calls. A change and its event are one transaction.

    Raises:
        ClusterError: the file cannot be opened; DamagedJournalError: it is not a valid journal.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._explained():
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._database.execute("PRAGMA journal_mode=WAL")
            # Survives the end of every process; a power failure ends the pods anyway.
            self._database.execute("PRAGMA synchronous=NORMAL")
            self._database.executescript(_SCHEMA)
            row = self._database.execute("SELECT max(version) FROM events").fetchone()
        self.version: int = row[0] or 0
        origin = self.fact(_ORIGIN)
        if origin is None:
            origin = uuid.uuid4().hex[:12]
            self.set_fact(_ORIGIN, origin)
        self._origin = origin

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.OperationalError) as error:
            raise ClusterError(f"{self._path}: the node agent's journal cannot be opened: {error}") from error
        except (sqlite3.DatabaseError, msgspec.MsgspecError) as error:
            raise DamagedJournalError(
                f"{self._path}: the node agent's journal is damaged ({error}); `elastrec agent stop` ends the pods "
                "that still run and puts the file aside, then `elastrec agent start` begins anew"
            ) from error

    @staticmethod
    def put_aside(path: Path) -> None:
        """Renames a damaged journal, so that it can be examined."""
        for name in (f"{path.name}-wal", f"{path.name}-shm"):
            path.with_name(name).unlink(missing_ok=True)
        path.replace(path.with_name(f"{path.name}.damaged"))

    def fact(self, name: str) -> str | None:
        row = self._database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None

    def set_fact(self, name: str, value: str) -> None:
        self._database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def records(self) -> list[PodRecord]:
        """In the order in which the pods were created."""
        with self._explained():
            rows = self._database.execute("SELECT record FROM pods ORDER BY position")
            return [msgspec.json.decode(row[0], type=PodRecord) for row in rows]

    def write(self, record: PodRecord | None, event: KeptEvent) -> None:
        """Writes a changed record with its event; with `record` None, removes the pod of the event.

        If the disk is full, waits until it has space. The agent pauses meanwhile, because changes that are not written
        are lost when it ends, and the end of a pod would never be reported. Pods continue.
        """
        stalled = False
        while True:
            try:
                self._write(record, event)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorname not in _NO_ROOM:
                    raise
                if not stalled:
                    log.error("agent_journal_has_no_room", reason=str(error), advice="make room on its disk")
                stalled = True
                time.sleep(_PAUSE_SECONDS)
                continue
            if stalled:
                log.info("agent_journal_written_again", pod=event.pod.name)
            return

    def _write(self, record: PodRecord | None, event: KeptEvent) -> None:
        database = self._database
        database.execute("BEGIN IMMEDIATE")
        try:
            if record is None:
                database.execute("DELETE FROM pods WHERE uid = ?", (event.pod.uid,))
            else:
                database.execute(
                    "INSERT INTO pods (uid, record) VALUES (?, ?)"
                    " ON CONFLICT(uid) DO UPDATE SET record = excluded.record",
                    (record.uid, msgspec.json.encode(record)),
                )
            blob = msgspec.json.encode(event)
            database.execute("INSERT INTO events VALUES (?, ?, ?)", (event.version, event.pod.job, blob))
            if event.version % 1000 == 0:
                database.execute("DELETE FROM events WHERE version <= ?", (event.version - KEPT_EVENTS,))
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise
        self.version = event.version

    def events_after(self, version: int, job: str | None) -> list[KeptEvent] | None:
        """Events, oldest first; None if events after that version were already deleted, or the version does not
        exist."""
        oldest = self._database.execute("SELECT min(version) FROM events").fetchone()[0]
        if version > self.version or (version < self.version and version + 1 < (oldest or 0)):
            return None
        rows = self._database.execute(
            "SELECT event FROM events WHERE version > ? AND (? IS NULL OR job = ?) ORDER BY version LIMIT ?",
            (version, job, job, _MOST_EVENTS),
        )
        return [msgspec.json.decode(row[0], type=KeptEvent) for row in rows]

    def token(self, version: int) -> str:
        """The token with which a watch continues after a version; invalid in a new journal."""
        return f"{self._origin}:{version}"

    def version_of(self, token: str) -> int | None:
        """The version of a token; None if it is not of this journal."""
        origin, _, version = token.partition(":")
        return int(version) if origin == self._origin and version.isdigit() else None

    def close(self) -> None:
        self._database.close()
