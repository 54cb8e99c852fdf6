from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

import pytest

from elastrec.platform.master.machine import events
from elastrec.platform.master.machine.effects import RecordAttempt
from elastrec.platform.master.machine.shards import Ended
from elastrec.platform.master.machine.state import JobState
from elastrec.platform.master.service.journal import FORMAT_VERSION, Journal, JournalError, encode_state
from elastrec.platform.transport.messages.ledger import Attempt
from tests.platform.master.world import plan


def begun(path: Path, events_count: int = 5, snapshot_every: int = 5000) -> JobState:
    """A closed journal of an own job with some events."""
    journal = Journal(path, snapshot_every=snapshot_every)
    journal.begin(plan())
    journal.start()
    state = JobState.new(plan())
    for number in range(events_count):
        event = events.Begun(time=0.0) if number == 0 else events.OwnerChanged(time=float(number), owner=str(number))
        state.handle(event)
        journal.append(event, [], lambda: encode_state(state))
    journal.wait(journal.last)
    journal.close()
    return state


def damage(path: Path, statement: str) -> None:
    database = sqlite3.connect(path)
    database.execute(statement)
    database.commit()
    database.close()


def test_a_new_journal_has_no_state(tmp_path: Path):
    journal = Journal(tmp_path / "journal")
    assert journal.load() is None
    journal.close()


def test_snapshots_keep_the_journal_short_and_the_state_equal(tmp_path: Path):
    state = begun(tmp_path / "journal", events_count=103, snapshot_every=10)
    journal = Journal(tmp_path / "journal")
    assert journal.load() == state and journal.last == 103
    journal.close()
    database = sqlite3.connect(tmp_path / "journal")
    assert database.execute("SELECT count(*) FROM events").fetchone()[0] < 20
    database.close()


def test_an_orderly_end_leaves_a_snapshot_so_that_the_next_start_replays_nothing(tmp_path: Path):
    state = begun(tmp_path / "journal", events_count=7)
    journal = Journal(tmp_path / "journal")
    loaded = journal.load()
    assert loaded == state and [sequence for sequence, _ in journal.events()] == list(range(1, 8))
    journal.start()
    state.handle(events.SaveAsked(time=9.0))
    journal.append(events.SaveAsked(time=9.0), [], lambda: b"")
    journal.close(encode_state(state))
    again = Journal(tmp_path / "journal")
    assert again.load() == state and again.last == 8 and not list(again.events(again.last))
    again.close(encode_state(state))
    rows = sqlite3.connect(tmp_path / "journal").execute("SELECT count(*) FROM events").fetchone()
    assert rows == (0,)


def test_every_commit_waits_for_the_disk(tmp_path: Path):
    # What a crash of the machine takes cannot be seen in a test; the setting that SQLite documents for it can.
    journal = Journal(tmp_path / "journal")
    full = 2
    assert journal._database.execute("PRAGMA synchronous").fetchone()[0] == full
    assert journal._database.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    journal.close()


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("UPDATE events SET body = x'00' WHERE sequence = 3", "event 3 is damaged"),
        ("DELETE FROM events WHERE sequence = 2", "event 2 is damaged or missing"),
        ("UPDATE plan SET body = x'80'", "the plan is damaged"),
        ("UPDATE plan SET format = 13", f"has format 13.*reads format {FORMAT_VERSION} alone. Go back to the version"),
        ("UPDATE plan SET format = 99", f"has format 99.*reads format {FORMAT_VERSION} alone. Go back to the version"),
    ],
)
def test_a_damaged_journal_is_refused_and_the_place_is_named(tmp_path: Path, statement: str, named: str):
    begun(tmp_path / "journal")
    damage(tmp_path / "journal", statement)
    journal = Journal(tmp_path / "journal")
    with pytest.raises(JournalError, match=named):
        journal.load()
    journal.close()


def test_a_file_that_is_not_a_journal_is_refused(tmp_path: Path):
    (tmp_path / "journal").write_bytes(b"something else entirely" * 100)
    with pytest.raises(JournalError, match="cannot be opened"):
        Journal(tmp_path / "journal")


def test_a_torn_file_is_refused(tmp_path: Path):
    begun(tmp_path / "journal", events_count=2000)
    content = (tmp_path / "journal").read_bytes()
    (tmp_path / "journal").write_bytes(content[: len(content) // 2])
    with pytest.raises(JournalError):
        Journal(tmp_path / "journal").load()


def test_the_ledger_has_exactly_the_rows_that_were_trained(tmp_path: Path):
    journal = Journal(tmp_path / "journal")
    journal.begin(plan())
    journal.start()
    ended = Ended("training", 7, 2, "j-worker-0", 3, 10, "done", 1.5)
    before = time.time()
    lines = [RecordAttempt(generation=1, time=2.5, ended=ended)]
    sequence = journal.append(events.Begun(time=0.0), lines, lambda: b"")
    journal.wait(sequence)
    found = journal.ledger()
    assert found == [
        Attempt("training", 1, 7, 2, "j-worker-0", 3, 10, "done", 1.5, 2.5, unix_seconds=found[0].unix_seconds)
    ]
    assert before <= found[0].unix_seconds <= time.time()
    assert journal.ledger(after=1) == [] and journal.ledger(until=0) == []
    journal.close()


def test_many_threads_share_commits_and_none_is_answered_early(tmp_path: Path):
    journal = Journal(tmp_path / "journal")
    journal.begin(plan())
    journal.start()
    order = threading.Lock()

    def write() -> None:
        for _ in range(50):
            with order:
                sequence = journal.append(events.SaveAsked(time=0.0), [], lambda: b"")
            journal.wait(sequence)
            reader = sqlite3.connect(tmp_path / "journal")
            assert reader.execute("SELECT max(sequence) FROM events").fetchone()[0] >= sequence
            reader.close()

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    journal.close()
    again = Journal(tmp_path / "journal")
    assert again.load() is not None and again.last == 200
    again.close()


def test_all_waiting_callers_get_the_error_of_a_journal_that_cannot_be_written(tmp_path: Path):
    journal = Journal(tmp_path / "journal")
    journal.begin(plan())
    damage(tmp_path / "journal", "DROP TABLE events")
    journal.start()
    sequence = journal.append(events.SaveAsked(time=0.0), [], lambda: b"")
    with pytest.raises(JournalError, match="cannot be written"):
        journal.wait(sequence)
    journal.close()


def test_an_event_that_cannot_be_written_fails_its_callers_instead_of_letting_them_wait(tmp_path: Path):
    journal = Journal(tmp_path / "journal")
    journal.begin(plan())
    journal.start()
    # More than SQLite's integers hold: an error of Python, not of the database.
    ended = Ended("training", 0, 1, "j-worker-0", 0, 2**63, "done")
    sequence = journal.append(events.Begun(time=0.0), [RecordAttempt(generation=0, time=0.0, ended=ended)], lambda: b"")
    failed: list[str] = []

    def wait() -> None:
        try:
            journal.wait(sequence)
        except JournalError as error:
            failed.append(str(error))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(20)
    assert len(failed) == 1 and "OverflowError: Python int too large" in failed[0]
    journal.close()
    again = Journal(tmp_path / "journal")
    assert again.load() is not None and again.last == 0, "nothing of the transaction is left"
    again.close()


def test_downtime_uses_the_uptime_and_after_a_reboot_the_wall_clock(tmp_path: Path):
    begun(tmp_path / "journal")
    # As if the wall clock had been set back by an hour since.
    damage(tmp_path / "journal", "UPDATE events SET unix_seconds = unix_seconds + 3600")
    damage(tmp_path / "journal", "UPDATE written SET uptime_seconds = uptime_seconds - 30")
    journal = Journal(tmp_path / "journal")
    assert 30 <= journal.seconds_since_last_event() < 60
    journal.close()
    damage(tmp_path / "journal", "UPDATE written SET boot = 'another'")
    damage(tmp_path / "journal", "UPDATE events SET unix_seconds = unix_seconds - 3700")
    journal = Journal(tmp_path / "journal")
    assert 100 <= journal.seconds_since_last_event() < 130
    journal.close()


def test_a_new_journal_has_been_without_a_master_for_no_time(tmp_path: Path):
    journal = Journal(tmp_path / "journal")
    assert journal.seconds_since_last_event() == 0.0
    journal.close()
