"""The disk of the master's journal is full for a while: nothing is granted in this time, and nothing is lost."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastrec.platform.master.machine import events, migration
from elastrec.platform.master.machine.state import JobState
from elastrec.platform.master.service.journal import Journal, JournalError, encode_state
from elastrec.platform.specs.errors import TransportError
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.transport import RpcClient
from elastrec.platform.transport.messages.job import Done
from elastrec.platform.transport.messages.observer import ChangeShape, SaveNow, ShapeAnswer, ShapeOutcome
from tests.disks import SmallDisk, small_disk
from tests.platform.master.fakes import job
from tests.platform.master.stage import Stage
from tests.platform.master.world import plan
from tests.processes import wait_for
from tests.shapes import change

pytestmark = pytest.mark.usefixtures("some_fleet")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", 16 * 2**20) as mounted:
        yield mounted


def append(journal: Journal, state: JobState, owner: str) -> int:
    event = events.OwnerChanged(time=0.0, owner=owner)
    state.handle(event)
    return journal.append(event, [], lambda: encode_state(state))


def test_a_caller_that_waits_for_an_event_is_answered_when_there_is_room_again(disk: SmallDisk) -> None:
    state = JobState.new(plan())
    journal = Journal(disk.folder / "journal")
    journal.begin(plan())
    journal.start()
    journal.wait(append(journal, state, "before"))
    disk.fill()
    # A journal takes its room in pages: the next event may still fit.
    sequence = 0
    while not journal.stall:
        sequence = append(journal, state, "meanwhile" * 1000)
        time.sleep(0.01)
    waiting = threading.Thread(target=journal.wait, args=(sequence,))
    waiting.start()
    assert "full" in journal.stall and waiting.is_alive()
    reader = sqlite3.connect(disk.folder / "journal")
    assert reader.execute("SELECT max(sequence) FROM events").fetchone()[0] < sequence
    reader.close()
    disk.free()
    waiting.join(10)
    assert not waiting.is_alive() and not journal.stall
    journal.close()
    again = Journal(disk.folder / "journal")
    assert again.load() == state
    again.close()


def test_a_wait_for_a_journal_that_was_given_up_fails(disk: SmallDisk) -> None:
    journal = Journal(disk.folder / "journal")
    journal.begin(plan())
    journal.start()
    disk.fill()
    state = JobState.new(plan())
    sequence = 0
    while not journal.stall:
        sequence = append(journal, state, "an owner" * 1000)
        time.sleep(0.01)
    journal.give_up()
    with pytest.raises(JournalError, match="full"):
        journal.wait(sequence)
    journal.close()


def test_a_job_pauses_while_its_journal_has_no_room_and_then_continues(disk: SmallDisk, tmp_path: Path) -> None:
    # Heartbeats are looked for again and again meanwhile; silence would cost a pod after 1.5 seconds.
    faults = {"heartbeat_interval": 0.02, "heartbeat_timeout": 1.5, "lease": 2}
    s = Stage(tmp_path, job(faults=faults), disk.folder, rows=3000)
    s.start()
    try:
        s.wait(lambda: s.service.state.training.done > 20)
        disk.fill()
        s.wait(lambda: bool(s.service.journal.stall))
        assert "no room" in s.metrics().reason
        with pytest.raises(TransportError, match="journal cannot be written"):
            RpcClient(s.address, "secret").call(SaveNow(), Done, timeout_seconds=0.5)
        on_disk = s.service.journal.ledger()
        time.sleep(2.2)  # longer than the lease and the heartbeat timeout
        assert s.service.journal.ledger() == on_disk and s.service.state.phase is Phase.TRAINING
        disk.free()
        s.wait_for(Phase.SUCCEEDED)
        assert s.rows_trained() == [1] * 3000
        assert not s.service.state.membership.losses
        assert s.metrics().reason == ""
    finally:
        s.close()


@pytest.mark.parametrize("step", ["_begin", "_hand_over", "_end"])
def test_a_change_of_servers_waits_for_journal_space_and_then_continues(
    disk: SmallDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The disk is full from the moment at which the master has taken this step, and before it is journalled."""
    take_step, full = getattr(migration, step), threading.Event()

    def take_step_and_fill(*arguments: Any) -> None:
        take_step(*arguments)
        if not full.is_set():
            disk.fill()
            full.set()

    monkeypatch.setattr(migration, step, take_step_and_fill)
    faults = {"heartbeat_interval": 0.02, "heartbeat_timeout": 1.5, "lease": 2}
    s = Stage(tmp_path, job(faults=faults), disk.folder, rows=2000, step_seconds=0.02)
    s.start()
    try:
        s.wait(lambda: s.service.state.training.done > 20)
        servers = len(s.service.state.ownership.servers) + 1
        wanted = ChangeShape(change=change(parameter_servers=servers))
        asking = threading.Thread(target=lambda: s.call(wanted, ShapeAnswer, 60.0))
        asking.start()
        s.wait(full.is_set)
        s.wait(lambda: bool(s.service.journal.stall))
        time.sleep(2.2)  # longer than the lease and the heartbeat timeout
        disk.free()
        asking.join(60)
        s.wait_for(Phase.SUCCEEDED)
        assert s.rows_trained() == [1] * 2000
        assert s.service.state.recovery.rollbacks == 0 and not s.service.state.membership.losses
        assert [request.outcome for request in s.service.state.shape_requests] == [ShapeOutcome.DONE]
    finally:
        s.close()


def test_a_master_that_is_ended_does_not_wait_for_journal_space(disk: SmallDisk, tmp_path: Path) -> None:
    s = Stage(tmp_path, job(), disk.folder, rows=3000)
    s.start()
    try:
        s.wait(lambda: s.service.state.training.done > 20)
        disk.fill()
        s.wait(lambda: bool(s.service.journal.stall))
        stopping = threading.Thread(target=lambda: (s.service.leave(5.0), s.stop()))
        stopping.start()
        wait_for(lambda: not stopping.is_alive(), 15, "the end of the master")
    finally:
        s.close()
