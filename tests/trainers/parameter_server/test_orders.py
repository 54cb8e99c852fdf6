"""The orders that a server follows, and its reports about them."""

from __future__ import annotations

import threading
import time

import pytest

from elastrec.platform.transport.messages.directive import Directive, Mode, RestoreOrder, SaveOrder
from elastrec.platform.transport.messages.job import RestoreProblem, SavedPart
from elastrec.trainers.parameter_server.orders import Orders
from tests.trainers.parameter_server.running import routing_of


def directive(version: int, mode: Mode = Mode.TRAIN, generation: int = 1) -> Directive:
    return Directive(version=version, mode=mode, generation=generation, routing=routing_of(["here:1"]))


def problem(*, is_damaged: bool) -> RestoreProblem:
    return RestoreProblem(order_id="r1", reason="why", is_damaged=is_damaged)


def reported(orders: Orders) -> dict[str, object]:
    with orders.reports() as reports:
        return reports


@pytest.fixture
def beats() -> list[str]:
    return []


@pytest.fixture
def orders(beats: list[str]) -> Orders:
    return Orders(lambda: beats.append("soon"))


def test_a_directive_that_an_answer_brings_late_does_not_replace_a_newer_one(orders: Orders) -> None:
    older, newer = (directive(number, generation=number) for number in (4, 5))
    for each in (newer, older):
        orders.take(each)
        assert orders.directive == newer
    newest = directive(6, Mode.PAUSE, 5)
    orders.take(newest)
    assert orders.directive == newest


def test_a_directive_or_a_failure_ends_the_wait(orders: Orders) -> None:
    first = directive(1)
    orders.take(first)
    assert orders.wait(None, 60.0) == (first, None, False)
    assert orders.wait(first, 0.01) == (first, None, True)
    later = threading.Thread(target=lambda: orders.take(directive(2)))
    later.start()
    found, _, _ = orders.wait(first, 60.0)
    later.join()
    assert found == directive(2)
    error = RuntimeError("disk full")
    orders.failed(error)
    assert orders.wait(found, 60.0) == (found, error, False)


def test_a_restore_clears_reported_saves_and_problems(orders: Orders, beats: list[str]) -> None:
    present, order, save = directive(1), RestoreOrder("r1", "there"), SaveOrder("s1", "here")
    orders.take(present)
    orders.saved(SavedPart(order_id="s1", manifest_json=b"{}"))
    assert orders.has_saved(save) and not orders.is_restored(order)
    assert orders.not_restored(problem(is_damaged=False), present, 0.01)
    assert reported(orders)["restore_problem"] == problem(is_damaged=False)
    assert len(beats) == 2
    orders.restored(order)
    assert orders.is_restored(order) and not orders.has_saved(save)
    found = reported(orders)
    assert (found["restored_order_id"], found["saved"], found["restore_problem"]) == ("r1", None, None)


def test_a_restore_is_not_tried_again_from_a_damaged_record_or_under_another_directive(orders: Orders) -> None:
    present = directive(1)
    orders.take(present)
    assert not orders.not_restored(problem(is_damaged=True), present, 60.0)
    assert not orders.not_restored(problem(is_damaged=False), directive(0), 60.0)


def test_a_save_is_reported_until_the_master_orders_none(orders: Orders, beats: list[str]) -> None:
    orders.froze("s1")
    orders.copied("s1")
    part = SavedPart(order_id="s1", manifest_json=b"{}")
    orders.saved(part)
    found = reported(orders)
    assert (found["frozen_order_id"], found["in_memory_order_id"], found["saved"]) == ("s1", "s1", part)
    assert len(beats) == 3
    orders.saved_is_known()
    assert reported(orders)["saved"] is None


def test_the_version_that_was_reached_never_falls(orders: Orders) -> None:
    for version in (3, 2):
        orders.reached(directive(version))
        assert reported(orders)["reached_version"] == 3


def test_what_a_heartbeat_reports_does_not_change_until_it_is_whole(orders: Orders) -> None:
    with orders.reports() as reports:
        saving = threading.Thread(target=lambda: orders.saved(SavedPart(order_id="s1", manifest_json=b"{}")))
        saving.start()
        time.sleep(0.05)
        assert saving.is_alive() and reports["saved"] is None
    saving.join()
    assert reported(orders)["saved"] is not None
