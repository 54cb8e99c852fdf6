"""The job's history on disk: every event is committed before it is answered; snapshots make restarts fast.

SQLite in WAL mode with `synchronous=FULL`: everything that is acknowledged has reached the disk. It survives the end of
the process and a crash of the machine, if the disk keeps confirmed writes; it does not survive the loss of the disk or
of the pod's folder. Concurrent callers share one commit, and one synchronisation with the disk. If the disk is full,
the journal waits: until there is space again, no call is answered, and nothing is lost.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import structlog
import xxhash

from elastrec.platform.master.machine.effects import Decided, RecordAttempt
from elastrec.platform.master.machine.events import Event
from elastrec.platform.master.machine.plan import JobPlan
from elastrec.platform.master.machine.state import JobState
from elastrec.platform.specs.errors import ElastrecError
from elastrec.platform.transport.messages.ledger import Attempt

log = structlog.get_logger(__name__)
FORMAT_VERSION = 15
_NO_ROOM = frozenset({"SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE"})
"""A disk, a quota or a file size limit is exhausted, which may be temporary."""
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0
LEDGER_PAGE = 10_000
"""Number of ledger lines that are read and sent at once."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS plan (format INTEGER NOT NULL, body BLOB NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS snapshot (
    sequence INTEGER PRIMARY KEY, body BLOB NOT NULL, checksum INTEGER NOT NULL, unix_seconds REAL NOT NULL);
CREATE TABLE IF NOT EXISTS events (
    sequence INTEGER PRIMARY KEY, unix_seconds REAL NOT NULL, body BLOB NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS attempts (
    stream TEXT NOT NULL, generation INTEGER NOT NULL, number INTEGER NOT NULL, attempt INTEGER NOT NULL,
    pod TEXT NOT NULL, row_begin INTEGER NOT NULL, row_end INTEGER NOT NULL,
    outcome TEXT NOT NULL, began REAL NOT NULL, ended REAL NOT NULL, unix_seconds REAL NOT NULL,
    sequence INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS timeline (
    time REAL NOT NULL, unix_seconds REAL NOT NULL, decision TEXT NOT NULL, inputs TEXT NOT NULL,
    sequence INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS written (boot TEXT NOT NULL, uptime_seconds REAL NOT NULL);
"""


class JournalError(ElastrecError):
    """The journal cannot be trusted or written."""

    @property
    def retryable(self) -> bool:  # type: ignore[override]
        """Whether a retry may succeed: the disk was full or not available, and the file itself is not damaged."""
        return isinstance(self.__cause__, sqlite3.OperationalError)


class _Entry(NamedTuple):
    sequence: int
    time: float
    body: bytes
    lines: Sequence[RecordAttempt | Decided]


def _checksum(sequence: int, body: bytes) -> int:
    # SQLite integers are signed; 63 bits are enough.
    return xxhash.xxh3_64_intdigest(body, seed=sequence & 0xFFFF_FFFF) >> 1


class Journal:
    """Append-only, with compaction. `append` may be called by many threads, in the order of the events.

    Args:
        path: the SQLite file.
        snapshot_every: events between two snapshots.

    Attributes:
        last: number of the last appended event.
        committed: number of the last event on disk.
        stall: why the journal cannot be written for the moment; empty if it can.

    Raises:
        JournalError: the file is not a journal, is damaged, or cannot be written.
    """

    def __init__(self, path: Path, *, snapshot_every: int = 5_000) -> None:
        self.path = path
        self._snapshot_every = snapshot_every
        self._pending: list[_Entry] = []
        self._snapshot: tuple[int, bytes] | None = None
        self._wake = threading.Condition()
        self.last = 0
        self.committed = 0
        self._snapshotted = 0
        self._problem: str | None = None
        self.stall = ""
        self._closing = False
        try:
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=FULL")
            verdict = self._database.execute("PRAGMA quick_check").fetchone()[0]
            if verdict != "ok":
                raise JournalError(f"{path}: the journal is damaged: {verdict}; {_MEND}")
            self._database.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise JournalError(f"{path}: the journal cannot be opened: {error}; {_MEND}") from error
        self._thread: threading.Thread | None = None

    def load(self) -> JobState | None:
        """The state after all committed events; None for a new journal.

        Raises:
            JournalError: a line is damaged or missing, or was written by another format.
        """
        # In one transaction, because another process may write meanwhile, and a snapshot deletes events.
        self._database.execute("BEGIN")
        try:
            return self._load()
        finally:
            self._database.execute("ROLLBACK")

    def _load(self) -> JobState | None:
        try:
            plan_row = self._database.execute("SELECT format, body, checksum FROM plan").fetchone()
            snapshot_row = self._database.execute(
                "SELECT sequence, body, checksum FROM snapshot ORDER BY sequence DESC LIMIT 1"
            ).fetchone()
            if plan_row is None:
                return None
            version, body, checksum = plan_row
            if version != FORMAT_VERSION:
                raise JournalError(
                    f"{self.path}: the journal has format {version}, which another version of elastrec wrote; this one "
                    f"reads format {FORMAT_VERSION} alone. Go back to the version that began the job until it has "
                    f"ended, or {_MEND}"
                )
            if checksum != _checksum(0, body):
                raise JournalError(f"{self.path}: the plan is damaged; {_MEND}")
            state = JobState.new(msgspec.msgpack.decode(body, type=JobPlan))
            if snapshot_row is not None:
                sequence, body, checksum = snapshot_row
                if checksum != _checksum(sequence, body):
                    raise JournalError(f"{self.path}: the snapshot at {sequence} is damaged; {_MEND}")
                state = decode_state(body)
                self.last = sequence
            self._snapshotted = self.last
            for sequence, event in self.events(self.last):
                state.handle(event)
                self.last = sequence
        except (sqlite3.Error, msgspec.MsgspecError) as error:
            raise JournalError(f"{self.path}: the journal cannot be read: {error}; {_MEND}") from error
        self.committed = self.last
        return state

    def events(self, after: int = 0) -> Iterator[tuple[int, Event]]:
        """The committed events since the last snapshot with their numbers, oldest first.

        Raises:
            JournalError: a line is damaged or missing.
        """
        decoder = msgspec.msgpack.Decoder(Event)
        expected = after + 1
        rows = self._database.execute(
            "SELECT sequence, body, checksum FROM events WHERE sequence > ? ORDER BY sequence", (after,)
        )
        for sequence, body, checksum in rows:
            if sequence != expected or checksum != _checksum(sequence, body):
                raise JournalError(f"{self.path}: event {expected} is damaged or missing; {_MEND}")
            yield sequence, decoder.decode(body)
            expected += 1

    def begin(self, plan: JobPlan) -> None:
        """Writes the plan of a new job; the first thing in a journal.

        Raises:
            JournalError: it cannot be written.
        """
        body = msgspec.msgpack.encode(plan)
        try:
            self._database.execute("INSERT INTO plan VALUES (?, ?, ?)", (FORMAT_VERSION, body, _checksum(0, body)))
        except sqlite3.Error as error:
            raise JournalError(f"{self.path}: the plan cannot be written: {error}; has the disk room?") from error

    def start(self) -> None:
        """Starts the thread that commits."""
        self._thread = threading.Thread(target=self._write, name="journal", daemon=True)
        self._thread.start()

    def append(self, event: Event, lines: Sequence[RecordAttempt | Decided], snapshot: Callable[[], bytes]) -> int:
        """Appends an event; it is on disk after `wait` for the returned number has returned.

        Args:
            lines: for the ledger and for the timeline.
            snapshot: called if a snapshot is due; returns the encoded state right after this event.
        """
        body = msgspec.msgpack.encode(event)
        with self._wake:
            self.last += 1
            self._pending.append(_Entry(self.last, event.time, body, lines))
            if self.last - self._snapshotted >= self._snapshot_every:
                self._snapshotted = self.last
                self._snapshot = (self.last, snapshot())
            self._wake.notify_all()
            return self.last

    def wait(self, sequence: int) -> None:
        """Returns when the event is committed.

        Raises:
            JournalError: the journal cannot be written any more.
        """
        if self.committed >= sequence:
            return
        with self._wake:
            while self.committed < sequence and self._problem is None:
                self._wake.wait()
            if self.committed < sequence:
                raise JournalError(f"{self.path}: the journal cannot be written: {self._problem}")

    def _write(self) -> None:
        while True:
            with self._wake:
                while not self._pending and not self._closing:
                    self._wake.wait()
                if not self._pending:
                    return
                batch, self._pending = self._pending, []
                snapshot, self._snapshot = self._snapshot, None
            problem = self._commit_patiently(batch, snapshot)
            with self._wake:
                if problem is None:
                    self.committed = batch[-1].sequence
                else:
                    self._problem = problem
                self._wake.notify_all()
                if problem is not None:
                    return

    def _commit_patiently(self, batch: list[_Entry], snapshot: tuple[int, bytes] | None) -> str | None:
        """Commits; waits for disk space without a limit; returns the error if committing is impossible."""
        began, pause = time.monotonic(), _FIRST_PAUSE_SECONDS
        while True:
            try:
                self._commit(batch, snapshot)
            except sqlite3.Error as error:
                problem = str(error)
                if getattr(error, "sqlite_errorname", "") not in _NO_ROOM:
                    return problem
            except Exception as error:
                # Without its thread, the journal would let all callers wait for ever.
                log.exception("journal_write_failed", journal=str(self.path))
                return f"{type(error).__name__}: {error}"
            else:
                if self.stall:
                    seconds = round(time.monotonic() - began, 3)
                    log.info("journal_written_again", journal=str(self.path), seconds=seconds)
                    self.stall = ""
                return None
            if not self.stall:
                advice = "make room on its disk; until then nothing is granted or acknowledged"
                log.error("journal_has_no_room", journal=str(self.path), reason=problem, advice=advice)
            self.stall = problem
            with self._wake:
                if self._wake.wait_for(lambda: self._closing, timeout=pause):
                    return problem
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _commit(self, batch: list[_Entry], snapshot: tuple[int, bytes] | None) -> None:
        now = time.time()
        execute = self._database.execute
        execute("BEGIN")
        try:
            self._database.executemany(
                "INSERT INTO events VALUES (?, ?, ?, ?)",
                [(entry.sequence, now, entry.body, _checksum(entry.sequence, entry.body)) for entry in batch],
            )
            lines = [
                (
                    e.stream, a.generation, e.number, e.attempt, e.pod, e.begin, e.end, e.outcome,
                    e.granted, a.time, now, entry.sequence,
                )
                for entry in batch
                for a in entry.lines
                if isinstance(a, RecordAttempt)
                for e in (a.ended,)
            ]  # fmt: skip
            if lines:
                marks = ", ".join("?" * 12)
                self._database.executemany(f"INSERT INTO attempts VALUES ({marks})", lines)
            decided = [
                (entry.time, now, line.decision, msgspec.json.encode(line.inputs).decode(), entry.sequence)
                for entry in batch
                for line in entry.lines
                if isinstance(line, Decided)
            ]
            if decided:
                self._database.executemany("INSERT INTO timeline VALUES (?, ?, ?, ?, ?)", decided)
            if snapshot is not None:
                sequence, body = snapshot
                execute("DELETE FROM snapshot")
                execute("INSERT INTO snapshot VALUES (?, ?, ?, ?)", (sequence, body, _checksum(sequence, body), now))
                execute("DELETE FROM events WHERE sequence <= ?", (sequence,))
            uptime = _uptime()
            if execute("UPDATE written SET boot = ?, uptime_seconds = ?", uptime).rowcount == 0:
                execute("INSERT INTO written VALUES (?, ?)", uptime)
            execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                execute("ROLLBACK")
            raise

    def ledger(self, after: int = 0, until: int | None = None, count: int = LEDGER_PAGE) -> list[Attempt]:
        """A page of the attempts that ended, oldest first: which rows, by which worker, in which generation.

        Args:
            after: number of the last line of the page before; lines are numbered from 1 without gaps.
            until: leaves out lines after this event.

        Raises:
            JournalError: the journal cannot be read.
        """
        # A separate connection, because that of the writer shows lines of an open transaction.
        try:
            with contextlib.closing(sqlite3.connect(self.path, isolation_level=None)) as database:
                rows = database.execute(
                    "SELECT stream, generation, number, attempt, pod, row_begin, row_end, outcome, began, ended, "
                    "unix_seconds FROM attempts WHERE rowid > ? AND sequence <= ? ORDER BY rowid LIMIT ?",
                    (after, self.last if until is None else until, count),
                )
                return [Attempt(*row) for row in rows]
        except sqlite3.Error as error:
            raise JournalError(f"{self.path}: the ledger cannot be read: {error}") from error

    def timeline(self, count: int) -> tuple[list[tuple[float, float, str, dict[str, Any]]], int]:
        """The last decisions, oldest first: time on the job's clock, on the wall clock, decision, inputs.

        Returns them with the number of older ones that were left out.

        Raises:
            JournalError: the journal cannot be read.
        """
        try:
            with contextlib.closing(sqlite3.connect(self.path, isolation_level=None)) as database:
                total = database.execute("SELECT count(*) FROM timeline").fetchone()[0]
                rows = database.execute(
                    "SELECT time, unix_seconds, decision, inputs FROM timeline WHERE rowid > ? ORDER BY rowid LIMIT ?",
                    (max(0, total - count), count),
                ).fetchall()
        except sqlite3.Error as error:
            raise JournalError(f"{self.path}: the timeline cannot be read: {error}") from error
        lines = [(time, unix, decision, msgspec.json.decode(inputs)) for time, unix, decision, inputs in rows]
        return lines, total - len(lines)

    def seconds_since_last_event(self) -> float:
        """Time since the last event was committed; 0 if there is none.

        Measured by the machine's uptime, which cannot be set; after a reboot or on another machine, by the wall clock.
        """
        boot, uptime = _uptime()
        written = self._database.execute("SELECT boot, uptime_seconds FROM written").fetchone()
        if written is not None and written[0] == boot:
            return max(0.0, uptime - float(written[1]))
        last = self._database.execute(
            "SELECT max(unix_seconds) FROM (SELECT unix_seconds FROM events UNION ALL "
            "SELECT unix_seconds FROM snapshot)"
        ).fetchone()[0]
        return 0.0 if last is None else max(0.0, time.time() - last)

    def give_up(self) -> None:
        """Stops waiting for the disk: if pending events cannot be written now, calls that wait for them fail."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()

    def close(self, snapshot: bytes | None = None) -> None:
        """Commits what is pending and closes the file.

        Args:
            snapshot: the encoded state after the last event, so that the next start replays nothing.
        """
        self.give_up()
        if self._thread is not None:
            self._thread.join()
        if snapshot is not None and self._problem is None and self.committed == self.last > 0:
            try:
                self._commit([], (self.last, snapshot))
            except sqlite3.Error as error:
                # All events are on disk; without a snapshot, only the next start takes longer.
                log.warning("no_last_snapshot", journal=str(self.path), reason=str(error))
        self._database.close()


def _uptime() -> tuple[str, float]:
    """The id of the machine's boot, and the seconds since then, including sleep."""
    return _boot(), time.clock_gettime(time.CLOCK_BOOTTIME)


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


_MEND = (
    "stop the job and start it again with the same run key (elastrec run --run-key, or clear its task in Airflow): it "
    "goes on from its newest record"
)


def encode_state(state: JobState) -> bytes:
    """A state as bytes; `decode_state` returns an equal one."""
    return msgspec.msgpack.encode(state)


def decode_state(body: bytes) -> JobState:
    """Decodes the bytes of `encode_state`."""
    return msgspec.msgpack.decode(body, type=JobState)
