"""How a master commits, deletes and reports records."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from elastrec.checkpoints import (
    PartWriter,
    RecordManifest,
    answer,
    conclude,
    list_records,
    open_record,
    open_store,
    take_term,
)
from elastrec.checkpoints.commit import job_digits
from elastrec.platform.master.machine import events
from elastrec.platform.master.machine.effects import CommitRecord, DiscardRecord
from elastrec.platform.master.machine.plan import JobPlan
from elastrec.platform.master.machine.recovery import CompleteRecord, Recovery
from elastrec.platform.master.machine.state import JobState
from elastrec.platform.master.pods.launch import LaunchRequest
from elastrec.platform.master.service import record_lane
from elastrec.platform.master.service.record_lane import RecordLane
from elastrec.platform.master.service.term_watch import TermWatch
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.specs.splits import Positions, StreamPositions
from elastrec.platform.transport.messages.job import SavedPart
from tests.platform.master.fakes import job, launch
from tests.platform.master.stage import Stage


def first_term(request: LaunchRequest) -> TermWatch:
    """Of a job's first master."""
    return TermWatch(request, lambda: (1, "holder"), lambda: None)


def commit_order(request: LaunchRequest, base: str = "", *, changes: bool = False) -> CommitRecord:
    """A save whose parts are written: of all buckets, or of `changes` since the base's."""
    state = JobState.new(JobPlan.of(request))
    save = state.saves.begin("save-2", step=40, is_final=False, version=2, time=1.0)
    open_store(request.store).create()
    first, last = (2, 2) if changes else (0, 1)
    groups = [answer(job().spec.data.tables, range(64), first=first, last=last)]
    writer = PartWriter(
        save.uri, "clicks-1-ps-0", groups=groups, dense_ranges=[(0, 4)], generation=0, cut=save.order_id
    )
    writer.write_dense("w", (4,), 0, {"value": np.zeros(4, np.float32)})
    part = SavedPart(order_id=save.order_id, manifest_json=writer.finish().to_json())
    return CommitRecord(
        order_id=save.order_id, uri=save.uri, is_final=False, step=40, generation=0, parts=[part],
        positions=Positions({"training": StreamPositions(2, [])}), base=base,
    )  # fmt: skip


@pytest.mark.parametrize(("is_own", "kind"), [(True, events.RecordCommitted), (False, events.RecordFailed)])
def test_a_master_killed_between_manifest_and_journal_takes_its_own_record_and_no_other(
    tmp_path: Path, is_own: bool, kind: type[events.Event]
) -> None:
    request = launch(str(tmp_path / "store"), job())
    order = commit_order(request)
    submitted: list[events.Event] = []

    def lane(job_id: str) -> RecordLane:
        of = LaunchRequest.of(
            request.training_job, job_id=job_id, training_manifest=request.training_manifest, training_rows=1000,
            evaluation_manifest=request.evaluation_manifest, evaluation_rows=100, store=request.store,
        )  # fmt: skip
        return RecordLane(of, lambda make: submitted.append(make(1.0)), list, first_term(of))

    def commit(lane: RecordLane) -> None:
        lane.submit(order)
        lane.wait(30.0)

    commit(lane("clicks-1"))
    assert submitted == [events.RecordCommitted(time=1.0, order_id=order.order_id)]
    # The event never reached the journal: the next master gives the same order.
    commit(lane("clicks-1" if is_own else "other-1"))
    assert type(submitted[1]) is kind and len(submitted) == 2
    assert open_record(order.uri).manifest.job_id == "clicks-1"


def test_the_base_of_a_record_is_reported_if_it_builds_on_it(tmp_path: Path) -> None:
    request = launch(str(tmp_path / "store"), job())
    submitted: list[events.Event] = []
    lane = RecordLane(request, lambda make: submitted.append(make(1.0)), list, first_term(request))
    full = commit_order(request)
    committed = []
    # Servers write all buckets if they do not know the changes since the base.
    for changes in (None, True, False):
        order = full if changes is None else commit_order(request, full.uri, changes=changes)
        for _ in range(2):  # the second time by a master that continues
            lane.submit(order)
            lane.wait(30.0)
            committed.append(events.RecordCommitted(time=1.0, order_id="save-2", base=full.uri if changes else ""))
    assert submitted == committed


def test_final_records_of_the_jobs_name_are_pruned_when_another_one_is_complete(tmp_path: Path) -> None:
    kept = {}
    for keep in (None, 3):
        store = str(tmp_path / str(keep))
        request = launch(store, job(checkpoint={"interval": 0, "keep_final": keep}))
        open_store(store).create()
        take_term(store, "clicks", "clicks-1", holder="holder", address="127.0.0.1:1", base=lambda: "")
        conclude(store, "clicks", "clicks-1")
        submitted: list[events.Event] = []
        lane = RecordLane(
            request, lambda make, submitted=submitted: submitted.append(make(1.0)), list, first_term(request)
        )
        orders = []
        for _ in range(5):
            orders.append(msgspec.structs.replace(commit_order(request), is_final=True))
            lane.submit(orders[-1])
            lane.wait(30.0)
        assert all(isinstance(event, events.RecordCommitted) for event in submitted) and len(submitted) == 5
        kept[keep] = [open_store(order.uri).exists("manifest.json") for order in orders]
    assert kept == {None: [True] * 5, 3: [False, False, True, True, True]}


def test_a_hanging_commit_delays_neither_other_effects_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = launch(str(tmp_path / "store"), job())
    order = commit_order(request)
    other = order.uri + "0"
    open_store(other).put("parts/torn", b"")
    gate, submitted = threading.Event(), []
    monkeypatch.setattr(record_lane, "commit_record", lambda *_, **__: gate.wait(60))
    monkeypatch.setattr(record_lane, "CLOSE_SECONDS", 0.1)
    lane = RecordLane(request, lambda make: submitted.append(make(1.0)), list, first_term(request))
    try:
        lane.submit(order)
        lane.submit(DiscardRecord(uri=other))
        lane.threads[-1].join(30.0)
        assert not open_store(other).keys() and lane.threads[0].is_alive()
        lane.close()
        assert lane.threads[0].is_alive() and not submitted
    finally:
        gate.set()
        lane.wait(30.0)
    assert not submitted


def test_a_commit_that_is_running_is_not_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A master whose process was suspended gives the orders of its unfinished saves again.
    request = launch(str(tmp_path / "store"), job())
    order = commit_order(request)
    gate, begun, submitted = threading.Event(), threading.Semaphore(0), []
    commit = record_lane.commit_record

    def gated(*arguments: Any, **others: Any) -> RecordManifest:
        begun.release()
        assert gate.wait(60)
        return commit(*arguments, **others)

    monkeypatch.setattr(record_lane, "commit_record", gated)
    lane = RecordLane(request, lambda make: submitted.append(make(1.0)), list, first_term(request))
    lane.submit(order)
    try:
        assert begun.acquire(timeout=30)
        lane.submit(order)
        assert len([thread for thread in lane.threads if thread.is_alive()]) == 1
    finally:
        gate.set()
        lane.wait(30.0)
    assert not begun.acquire(timeout=0)
    assert submitted == [events.RecordCommitted(time=1.0, order_id=order.order_id)]
    # One that has ended may be ordered again.
    lane.submit(order)
    lane.wait(30.0)
    assert begun.acquire(timeout=0) and len(submitted) == 2


@pytest.mark.usefixtures("some_fleet")
def test_a_master_that_was_killed_before_it_had_pruned_does_so_when_it_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = Stage(tmp_path, job(checkpoint={"interval": 0}))
    folder = f"{s.request.store}/clicks/records"
    torn = open_store(f"{folder}/000000000001-{job_digits('clicks-1')}-00000000")
    try:
        with monkeypatch.context() as patch:
            patch.setattr(record_lane, "prune", lambda *_, **__: [])
            s.start()
            s.wait_for(Phase.SUCCEEDED)
            # A server of the job, and the master that committed its final record, were killed while they wrote.
            torn.open_write("parts/clicks-1-ps-0.bin").write(b"half")
            (final,) = [uri for uri, _ in list_records(s.request.store, "clicks")]
            open_store(final).open_write("manifest.json").write(b"half")
            s.stop()
        s.start()
        s.wait(lambda: open_store(folder).folders() == [final.rpartition("/")[2]])
        s.wait(lambda: not open_store(folder).unfinished())
        assert open_record(final).manifest.kind == "final"
    finally:
        s.close()


def test_records_of_which_a_restarted_master_knows_stay_whatever_the_store_holds_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = launch(str(tmp_path / "store"), job(checkpoint={"interval": 1, "keep": 1}))
    lane = RecordLane(request, lambda make: make(1.0), list, first_term(request))
    known, newer = (commit_order(request) for _ in range(2))
    with monkeypatch.context() as patch:
        patch.setattr(record_lane, "prune", lambda *_, **__: [])
        for order in (known, newer):
            # The job does not know of the newer one: its commit was not journalled, and is ordered again.
            lane.submit(order)
            lane.wait(30.0)
    recovery = Recovery(start_records=[""], records=[CompleteRecord(known.uri, known.positions, False, 40, "")])
    lane.prune(recovery)
    lane.wait(30.0)
    assert open_store(known.uri).keys()
    lane.prune(Recovery(start_records=[""], damaged=[known.uri]))
    lane.wait(30.0)
    assert open_store(known.uri).keys()
    lane.prune(Recovery(start_records=[""]))
    lane.wait(30.0)
    assert not open_store(known.uri).keys() and open_store(newer.uri).keys()


def test_a_complete_record_is_deleted_only_on_request(tmp_path: Path) -> None:
    request = launch(str(tmp_path / "store"), job())
    order = commit_order(request)
    lane = RecordLane(request, lambda make: make(1.0), list, first_term(request))
    for effect, is_there in (
        (order, True),
        (DiscardRecord(uri=order.uri), True),
        (DiscardRecord(uri=order.uri, may_be_complete=True), False),
    ):
        lane.submit(effect)
        lane.wait(30.0)
        assert bool(open_store(order.uri).keys()) is is_there
