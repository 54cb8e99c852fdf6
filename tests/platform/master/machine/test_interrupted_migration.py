"""Changes of servers and workers that are interrupted once or twice at any point."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import example_factor
from tests.platform.master.machine.interrupted import (
    CHANGES,
    UPSETS,
    Upset,
    check_settled,
    upset_change,
)
from tests.platform.master.world import World

LEAST_EVENTS = {"change_everything": 60, "more_servers": 30, "fewer_servers": 20, "hot_server": 10}
"""A change of everything consists of at least so many events, and so on."""


@pytest.mark.parametrize("upset", UPSETS, ids=lambda upset: upset.__name__)
@pytest.mark.parametrize("start", CHANGES, ids=lambda start: start.__name__)
def test_a_change_upset_after_any_event_ends_on_one_owner_per_bucket(start: Callable[[World], None], upset: Upset):
    # With fewer random examples also fewer of the events, others for each upset; all of them in `make test`.
    stride = max(1, round(1 / example_factor()))
    after = UPSETS.index(upset) % stride
    while (world := upset_change(start, [(after, upset)])) is not None:
        check_settled(world, [upset])
        after += stride
    assert after > LEAST_EVENTS[start.__name__], "too little was interrupted"


@settings(max_examples=400)
@given(
    st.sampled_from(CHANGES), st.integers(0, 100), st.sampled_from(UPSETS), st.integers(0, 60), st.sampled_from(UPSETS)
)
def test_a_change_upset_twice_ends_on_one_owner_per_bucket(
    start: Callable[[World], None], after: int, first: Upset, later: int, second: Upset
):
    world = upset_change(start, [(after, first), (later, second)])
    if world is not None:
        check_settled(world, [first, second])
