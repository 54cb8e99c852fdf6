"""A remedy for a pod is applied when the pod has cost as much as the remedy, and for long enough."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrec.platform.master.measuring.lasting import Lasting

LEAST, PRICE, COOL_DOWN = 10.0, 5.0, 120.0


def due_after(losses: list[float], window: float = 1.0) -> float | None:
    """Seconds from the first look until pod `a` is due; a loss of 0 is a window in which it does not stand out."""
    lasting = Lasting(LEAST, COOL_DOWN)
    lasting.look({}, PRICE, 0.0)
    for number, loss in enumerate(losses, start=1):
        if lasting.look({"a": loss} if loss else {}, PRICE, number * window):
            return number * window
    return None


@pytest.mark.parametrize(
    ("loss", "seconds"), [(1.0, LEAST), (0.5, PRICE / 0.5), (0.25, PRICE / 0.25), (0.0625, PRICE / 0.0625)]
)
def test_the_less_is_lost_the_longer_it_takes_until_something_is_done(loss: float, seconds: float):
    assert due_after([loss] * 200) == pytest.approx(seconds)


def test_a_window_without_the_excess_cancels_one_with_it():
    assert due_after([0.5] * 8 + [0.0] + [0.5] * 5) == 12.0
    assert due_after([0.5] * 3 + [0.0] * 3 + [0.5] * 12) == 16.0
    assert due_after([0.9, 0.0] * 500) is None


def test_windows_before_the_first_check_do_not_count():
    lasting = Lasting(LEAST, COOL_DOWN)
    assert not lasting.look({"a": 1.0}, PRICE, 1000.0)
    assert not lasting.look({"a": 1.0}, PRICE, 1000.0 + LEAST - 0.1)
    assert lasting.look({"a": 1.0}, PRICE, 1000.0 + LEAST) == {"a": 1000.0}
    lasting.forget()
    assert not lasting.look({"a": 1.0}, PRICE, 2000.0)


def test_a_window_without_measurements_changes_nothing():
    lasting = Lasting(LEAST, COOL_DOWN)
    lasting.look({}, PRICE, 0.0)
    lasting.look({"a": 1.0}, PRICE, LEAST - 1.0)
    assert not lasting.look(None, PRICE, 500.0)
    assert lasting.look({"a": 1.0}, PRICE, 501.0)


def test_excesses_are_counted_per_pod_and_a_pod_without_one_now_is_not_due():
    lasting = Lasting(LEAST, COOL_DOWN)
    lasting.look({}, PRICE, 0.0)
    lasting.look({"a": 1.0}, PRICE, 20.0)
    lasting.look({"a": 1.0, "b": 1.0}, PRICE, 22.0)
    assert lasting.look({"b": 1.0}, PRICE, 23.0) == {}
    assert lasting.look({"a": 1.0, "b": 1.0}, PRICE, 24.0) == {"a": 0.0}


def test_no_pod_is_remembered_for_longer_than_it_takes_to_be_due():
    lasting = Lasting(LEAST, COOL_DOWN)
    lasting.look({}, PRICE, 0.0)
    for second in range(1, 1000):
        lasting.look({"a": 1.0}, PRICE, float(second))
    lasting.look({}, PRICE, 999.0 + LEAST)
    assert not lasting.look({"a": 1.0}, PRICE, 1000.0 + LEAST)


def test_the_next_one_waits_until_the_last_change_shows():
    lasting = Lasting(LEAST, COOL_DOWN)
    lasting.look({}, PRICE, 0.0)
    assert lasting.look({"a": 1.0}, PRICE, 20.0)
    lasting.done(20.0)
    assert not lasting.look({"a": 1.0, "b": 1.0}, PRICE, 20.0 + COOL_DOWN - 1.0)
    assert set(lasting.look({"a": 1.0, "b": 1.0}, PRICE, 20.0 + COOL_DOWN)) == {"a", "b"}


@given(
    losses=st.lists(st.sampled_from([0.0, 0.0, 0.1, 0.3, 0.5, 0.9, 1.0]), max_size=80),
    window=st.sampled_from([0.5, 1.0, 5.0]),
)
def test_nothing_is_done_before_the_price_is_lost_nor_later_than_a_window_after(losses: list[float], window: float):
    due = due_after(losses, window)
    until = losses if due is None else losses[: round(due / window)]
    if due is not None:
        assert due >= LEAST - 1e-9 and sum(until) * window >= PRICE - 1e-9
        assert sum(loss > 0 for loss in until) * window >= LEAST - 1e-9
    # The longest piece without a break that begins where nothing is remembered: the whole, where no break is.
    if all(until[:-1]) and due is not None:
        before = until[:-1]
        assert sum(before) * window < PRICE or len(before) * window < LEAST
    if all(losses) and sum(losses) * window >= PRICE and len(losses) * window >= LEAST:
        assert due is not None
