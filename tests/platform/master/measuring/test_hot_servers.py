"""A server with more load than the others gives its hottest buckets away, and is then not changed for a while."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrec.platform.master.measuring.hot_servers import (
    COOL_DOWN_SECONDS,
    COPIED_BYTES_PER_CORE_SECOND,
    HOT_RATIO,
    LEAST_HOT_SECONDS,
    MOST_MOVES,
    RELIEF_SECONDS,
    RELIEVED_RATIO,
    HotServers,
    Load,
    hot_server,
    loss_of,
    ratio_of,
    relief_of,
)
from elastrec.platform.transport.messages.job import BucketLoad


def loads(
    *rows_per_second: float, cores: float = 1.0, hottest: float = 400.0, bucket_bytes: int = 0
) -> dict[str, Load]:
    """Servers with such a load; each names eight of its buckets."""
    return {
        f"ps-{number}": Load(
            rows, cores, [BucketLoad(100 * number + bucket, hottest, bucket_bytes) for bucket in range(8)]
        )
        for number, rows in enumerate(rows_per_second)
    }


def after(before: dict[str, Load], moves: dict[int, str]) -> dict[str, float]:
    rates = {name: load.rows_per_second for name, load in before.items()}
    of_bucket = {hot.bucket: (name, hot.rows_per_second) for name, load in before.items() for hot in load.hottest}
    for bucket, target in moves.items():
        giver, rate = of_bucket[bucket]
        rates[giver] -= rate
        rates[target] += rate
    return rates


def test_the_hottest_buckets_move_to_the_least_loaded_server_until_the_source_is_not_hot():
    before = loads(6000.0, 3000.0, 2000.0)
    relief = relief_of(before, hot_server(before))
    assert relief is not None and relief.server == "ps-0" and relief.ratio == 2.4
    rates = after(before, relief.moves)
    assert rates["ps-0"] / ((rates["ps-1"] + rates["ps-2"]) / 2) <= RELIEVED_RATIO
    assert list(relief.moves.items())[:2] == [(0, "ps-2"), (1, "ps-2")]  # which has least until they are there
    assert "ps-1" in relief.moves.values() or rates["ps-2"] <= rates["ps-1"] + 400


def test_load_counts_per_core():
    even = {"ps-0": Load(4000.0, 2.0, [BucketLoad(1, 500.0)]), "ps-1": Load(2000.0, 1.0, [BucketLoad(2, 500.0)])}
    assert not hot_server(even)
    hot = {**even, "ps-1": Load(4000.0, 1.0, [BucketLoad(2, 500.0)])}
    relief = relief_of(hot, hot_server(hot))
    assert relief is not None and relief.moves == {2: "ps-0"}


def test_servers_that_differ_little_or_have_little_to_do_are_left_alone():
    assert not hot_server(loads(3900.0, 3000.0)) and HOT_RATIO > 3900 / 3000
    assert not hot_server(loads(900.0, 100.0))
    assert not hot_server(loads(5000.0))


def test_a_single_bucket_that_makes_a_server_hot_stays_for_it_would_make_the_next_one_so():
    before = {"ps-0": Load(5000.0, 1.0, [BucketLoad(7, 4900.0)]), "ps-1": Load(1000.0, 1.0, [BucketLoad(8, 10.0)])}
    assert hot_server(before) == "ps-0" and relief_of(before, "ps-0") is None


@given(
    rates=st.lists(st.floats(0.0, 1e5), min_size=2, max_size=6),
    shares=st.lists(st.floats(0.0, 0.2), min_size=1, max_size=16),
)
def test_a_relief_reduces_the_highest_load_and_overloads_no_other_server(rates: list[float], shares: list[float]):
    before = {
        f"ps-{number}": Load(
            rate,
            1.0,
            [BucketLoad(100 * number + k, share * rate) for k, share in enumerate(sorted(shares, reverse=True))],
        )
        for number, rate in enumerate(rates)
    }
    server = hot_server(before)
    relief = relief_of(before, server) if server else None
    if relief is None:
        return
    rates_after = after(before, relief.moves)
    assert len(relief.moves) <= MOST_MOVES and server not in relief.moves.values()
    assert max(rates_after.values()) <= before[server].rows_per_second
    assert relief.ratio_after <= relief.ratio == ratio_of(before, server)


def seconds_until_relief(before: dict[str, Load], waiting_share: float = 1.0, job_seconds: float = math.inf) -> float:
    seen = HotServers()
    for second in range(1000):
        if seen.look(before, waiting_share, 7.0 + second, job_seconds - second):
            return float(second)
    return math.inf


def test_the_cost_of_a_hot_server_is_the_workers_wait_beyond_that_of_even_load():
    assert loss_of(loads(4000.0, 1000.0, 1000.0), "ps-0", 1.0) == pytest.approx(0.5)
    assert loss_of(loads(4000.0, 1000.0, 1000.0), "ps-0", 0.2) == pytest.approx(0.1)
    other_cores = {**loads(4000.0, 1000.0), "ps-1": Load(1000.0, 4.0, [])}
    assert loss_of(other_cores, "ps-0", 1.0) == pytest.approx(1 - 1000.0 / 4000.0)


def test_a_server_that_costs_more_is_relieved_sooner():
    hot, warm = loads(4000.0, 1000.0, 1000.0), loads(1000.0 * HOT_RATIO, 1000.0, 1000.0, hottest=100.0)
    assert seconds_until_relief(loads(90_000.0, 1000.0, 1000.0, hottest=9000.0)) == LEAST_HOT_SECONDS
    assert seconds_until_relief(hot) == LEAST_HOT_SECONDS > RELIEF_SECONDS / 0.5
    assert LEAST_HOT_SECONDS < seconds_until_relief(warm) == math.ceil(RELIEF_SECONDS / loss_of(warm, "ps-0", 1.0))
    assert seconds_until_relief(hot, 0.125) == RELIEF_SECONDS / 0.0625
    assert seconds_until_relief(hot, 0.0) == math.inf


def test_a_server_is_relieved_later_the_more_its_servers_must_copy_per_core():
    size_bytes = 10**7
    hot = loads(4000.0, 1000.0, 1000.0, bucket_bytes=size_bytes, cores=0.04)
    relief = relief_of(hot, "ps-0")
    assert relief is not None and relief.size_bytes == len(relief.moves) * size_bytes
    copying_seconds = relief.size_bytes / (0.04 * COPIED_BYTES_PER_CORE_SECOND)
    assert relief.price_seconds == pytest.approx(RELIEF_SECONDS + copying_seconds)
    assert seconds_until_relief(hot) == pytest.approx(relief.price_seconds / 0.5, abs=1.0)
    assert seconds_until_relief(hot) > 4 * RELIEF_SECONDS
    small_target = {**hot, "ps-1": Load(1000.0, 0.02, []), "ps-2": Load(1800.0, 0.02, [])}
    to_small = relief_of(small_target, "ps-0")
    assert to_small is not None and set(to_small.moves.values()) == {"ps-1"}
    assert to_small.price_seconds == pytest.approx(
        RELIEF_SECONDS + to_small.size_bytes / (0.02 * COPIED_BYTES_PER_CORE_SECOND)
    )


def test_a_server_is_not_relieved_shortly_before_the_job_ends():
    hot = loads(4000.0, 1000.0, 1000.0, bucket_bytes=10**7, cores=0.04)
    relief, due = relief_of(hot, "ps-0"), seconds_until_relief(hot)
    assert relief is not None
    paid = relief.price_seconds / 0.5
    assert seconds_until_relief(hot, job_seconds=due + paid + 1) == due
    assert seconds_until_relief(hot, job_seconds=due + paid - 1) == math.inf


def test_a_server_is_not_relieved_again_before_the_last_relief_shows():
    seen, hot = HotServers(), loads(4000.0, 1000.0, 1000.0)
    times = [second for second in range(400) if seen.look(hot, 1.0, 10.0 + second)]
    assert len(times) > 2
    assert {after - before for before, after in pairwise(times)} == {COOL_DOWN_SECONDS}


def test_a_server_that_was_hot_for_a_moment_or_before_the_servers_changed_is_not_relieved():
    seen, hot, even = HotServers(), loads(4000.0, 1000.0, 1000.0), loads(2000.0, 2000.0, 2000.0)
    for burst in range(20):
        begun = 20.0 * burst
        assert not any(seen.look(hot, 1.0, begun + second) for second in range(9))
        assert not any(seen.look(even, 1.0, begun + second) for second in range(9, 20))
    assert not any(seen.look(hot, 1.0, 400.0 + second) for second in range(9))
    seen.forget()
    assert not any(seen.look(hot, 1.0, 410.0 + second) for second in range(10))
    assert seen.look(hot, 1.0, 420.0)


def test_unknown_loads_of_a_window_do_not_clear_a_hot_server():
    seen, hot = HotServers(), loads(4000.0, 1000.0, 1000.0)
    assert not any(seen.look(hot, 1.0, float(second)) for second in range(10))
    assert not seen.look({}, 1.0, 30.0)
    assert seen.look(hot, 1.0, 31.0)
