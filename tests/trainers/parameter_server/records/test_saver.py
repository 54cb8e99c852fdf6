"""Parts are written by a separate thread, each a consistent snapshot, and cancelled if their order is no longer
valid.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elastrec.checkpoints import PartManifest, PartWriter, commit_record, open_store
from elastrec.checkpoints.parts import read_index
from elastrec.platform.transport.messages.directive import SaveOrder
from elastrec.platform.transport.messages.job import SavedPart
from elastrec.trainers.parameter_server.messages import Applied, Rows
from elastrec.trainers.parameter_server.records import share as records
from elastrec.trainers.parameter_server.records.saver import Saver
from elastrec.trainers.parameter_server.serving import handlers
from elastrec.trainers.parameter_server.serving.server import Frozen, ParameterServer
from elastrec.trainers.parameter_server.storage.kernels.arrays import FROZEN
from tests.processes import wait_for
from tests.trainers.parameter_server.calls import SGD, pull, push, server_of
from tests.trainers.parameter_server.running import routing_of, training_job

IDS = list(range(50))


class Gate:
    """Holds a thread that writes a section until the test opens it."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def pass_through(self) -> None:
        self.reached.set()
        assert self.opened.wait(60)


class Reports:
    """What a saver reported."""

    def __init__(self) -> None:
        self.frozen: list[str] = []
        self.parts: list[SavedPart] = []
        self.errors: list[Exception] = []
        self.changed = threading.Condition()

    def part(self, part: SavedPart) -> None:
        with self.changed:
            self.parts.append(part)
            self.changed.notify_all()

    def wait(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.parts) == count, 60)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()

    class SlowWriter(PartWriter):
        def write(self, *of: Any, **more: Any) -> int:
            gate.pass_through()
            return super().write(*of, **more)

    monkeypatch.setattr(records, "PartWriter", SlowWriter)
    yield gate
    gate.opened.set()


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> ParameterServer:
    monkeypatch.setattr(handlers, "_PATIENCE_SECONDS", 0.05)
    made = server_of()
    pull(made, "a", IDS)
    push(made, "a", 0, IDS, 1.0)
    return made


def order(folder: Path, number: int) -> SaveOrder:
    return SaveOrder(f"save-{number}", str(folder / f"record-{number}"))


def answer(call: Callable[[], Any]) -> Any:
    return call()[0]


def test_requests_during_a_save_are_served_and_are_not_in_the_saved_part(
    trained: ParameterServer, gate: Gate, tmp_path: Path
) -> None:
    reports = Reports()
    saver = Saver(trained, reports.frozen.append, reports.part, reports.errors.append)
    saved_rows, saved_dense = (array.copy() for array in pull(trained, "a", IDS)[1])
    saver.begin(order(tmp_path, 1))
    # Nothing is written yet, and the cut is taken.
    assert gate.reached.wait(60) and saver.writing == "save-1" and reports.frozen == ["save-1"]
    assert isinstance(answer(lambda: push(trained, "a", 1, [*IDS, 1000], 1.0)), Applied)
    assert isinstance(answer(lambda: pull(trained, "a", IDS)), Rows)
    gate.opened.set()
    reports.wait(1)
    assert saver.writing == "" and not reports.errors
    part = PartManifest.from_json(reports.parts[0].manifest_json)
    assert sum(table.rows for table in part.tables) == len(IDS)
    job, uri = training_job(optimizers=SGD), order(tmp_path, 1).uri
    commit_record(uri, [part], b"{}", job=job, job_id="job-1", kind="periodic", step=1, generation=1)
    assert not np.array_equal(pull(trained, "a", IDS)[1][0], saved_rows)
    records.restore(trained, uri, routing_of(["here:1"]), 1)
    for now, then in zip(pull(trained, "a", IDS)[1], (saved_rows, saved_dense), strict=True):
        np.testing.assert_array_equal(now, then)


def test_a_part_is_reported_before_its_order_is_removed(trained: ParameterServer, tmp_path: Path) -> None:
    in_force: list[str] = []
    ended = threading.Event()

    def report(part: SavedPart) -> None:
        in_force.append(saver.order_id)
        ended.set()

    saver = Saver(trained, lambda order_id: None, report, lambda error: None)
    saver.begin(order(tmp_path, 1))
    assert ended.wait(60) and in_force == ["save-1"]


def test_a_server_whose_store_hangs_serves_again_when_the_save_is_abandoned(
    trained: ParameterServer, gate: Gate, tmp_path: Path
) -> None:
    reports = Reports()
    saver = Saver(trained, reports.frozen.append, reports.part, reports.errors.append)
    saver.begin(order(tmp_path, 1))
    assert gate.reached.wait(60)
    saver.cancel()
    assert isinstance(answer(lambda: pull(trained, "a", IDS)), Rows)
    assert isinstance(answer(lambda: push(trained, "a", 1, IDS, 1.0)), Applied)
    # Of another moment now: when the store answers, the part is dropped.
    assert saver.writing == "save-1"
    saver.begin(order(tmp_path, 2))
    gate.opened.set()
    reports.wait(1)
    assert [part.order_id for part in reports.parts] == ["save-2"] and not reports.parts[0].problem
    assert not open_store(tmp_path / "record-1").keys() and open_store(tmp_path / "record-2").keys()


def test_a_save_cancelled_immediately_before_its_cut_leaves_no_bucket_frozen_while_the_store_hangs(
    trained: ParameterServer, gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    freeze = trained.freeze

    def cancel_and_freeze() -> Frozen:
        saver.cancel()
        return freeze()

    monkeypatch.setattr(trained, "freeze", cancel_and_freeze)
    reports = Reports()
    saver = Saver(trained, reports.frozen.append, reports.part, reports.errors.append)
    saver.begin(order(tmp_path, 1))
    wait_for(lambda: gate.reached.is_set() or (not saver.order_id and not saver.writing), 60, "the end of the save")
    assert not any((store.marks[:, FROZEN] >= 0).any() for store in trained.stores)
    assert not gate.reached.is_set() and not reports.frozen and not reports.parts and not reports.errors


def test_only_the_newest_order_received_while_the_store_hung_is_executed(
    trained: ParameterServer, gate: Gate, tmp_path: Path
) -> None:
    reports = Reports()
    saver = Saver(trained, reports.frozen.append, reports.part, reports.errors.append)
    saver.begin(order(tmp_path, 1))
    assert gate.reached.wait(60)
    for number in (2, 3):
        saver.cancel()
        saver.begin(order(tmp_path, number))
    gate.opened.set()
    reports.wait(1)
    assert [part.order_id for part in reports.parts] == ["save-3"]
    assert not open_store(tmp_path / "record-2").keys()


def test_every_section_that_is_written_is_a_sign_that_the_store_answers(
    trained: ParameterServer, tmp_path: Path
) -> None:
    before = trained.transfers
    part = records.save_part(trained, str(tmp_path / "record"))
    sections = len(read_index(open_store(tmp_path / "record"), part))
    assert sections > 1 and trained.transfers == before + sections
