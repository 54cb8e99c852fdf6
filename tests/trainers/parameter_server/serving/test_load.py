"""The reported load of a server: requested rows per second, and the buckets with most of them."""

from __future__ import annotations

import numpy as np
import pytest

from elastrec.platform.transport.messages.job import ServerLoad
from elastrec.trainers.parameter_server.hashing import buckets_of
from elastrec.trainers.parameter_server.plan import make_plan
from elastrec.trainers.parameter_server.serving.load import LoadMeter, Served
from elastrec.trainers.parameter_server.storage import RowStore
from elastrec.trainers.parameter_server.storage.memory import UsedRegions

BUCKETS = 64


def store_of() -> RowStore:
    plan = make_plan({"t": 4}, virtual_buckets=BUCKETS)
    return RowStore(plan, plan.groups[0], np.ones(BUCKETS, np.bool_), 10_000, stripes=4)


def pull(store: RowStore, ids: np.ndarray) -> None:
    store.pull(np.array([len(ids)], np.int32), ids, read_only=True)


def test_a_constant_load_is_reported_by_bucket_and_in_total():
    store, meter, owned = store_of(), LoadMeter(), np.ones(BUCKETS, np.bool_)
    ids = np.arange(1000)
    (hot,) = set(buckets_of(ids[:1], "t", BUCKETS).tolist())
    assert meter.measure([store], owned, Served(), 0.0) == ServerLoad()
    for second in range(1, 121):
        pull(store, ids)
        pull(store, np.full(200, ids[0]))
        load = meter.measure([store], owned, Served(), float(second))
    assert load.rows_per_second == pytest.approx(1200, rel=0.01)
    assert load.hottest[0].bucket == hot and load.hottest[0].rows_per_second == pytest.approx(
        200 + np.sum(buckets_of(ids, "t", BUCKETS) == hot), rel=0.01
    )
    rates = [each.rows_per_second for each in load.hottest]
    assert len(rates) == 16 and rates == sorted(rates, reverse=True)


def test_a_buckets_size_is_that_of_its_copy():
    store, meter, owned = store_of(), LoadMeter(), np.ones(BUCKETS, np.bool_)
    meter.measure([store], owned, Served(), 0.0)
    counts, ids = np.array([100], np.int32), np.arange(100)
    store.push(counts, ids, np.ones(100, np.int32), np.ones((100, 4), np.float32), 0.0)
    pull(store, ids)
    hottest = meter.measure([store], owned, Served(), 1.0).hottest
    sizes = {each.bucket: store.bucket(each.bucket).changes(-1).size_bytes for each in hottest}
    assert sizes and {each.bucket: each.size_bytes for each in hottest} == sizes
    assert all(size > 0 for size in sizes.values())


def test_the_load_of_a_server_that_began_a_moment_ago_is_not_reported_too_low():
    store, meter, owned = store_of(), LoadMeter(), np.ones(BUCKETS, np.bool_)
    meter.measure([store], owned, Served(), 0.0)
    for second in (1, 2, 3):
        pull(store, np.arange(1000))
        assert meter.measure([store], owned, Served(), float(second)).rows_per_second == pytest.approx(1000, rel=1e-3)


def test_buckets_with_another_owner_and_counters_of_an_earlier_model_do_not_count():
    store, meter, owned = store_of(), LoadMeter(), np.ones(BUCKETS, np.bool_)
    meter.measure([store], owned, Served(), 0.0)
    pull(store, np.arange(1000))
    everything = meter.measure([store], owned, Served(), 1.0).rows_per_second
    half = np.arange(BUCKETS) < BUCKETS // 2
    pull(store, np.arange(1000))
    load = meter.measure([store], half, Served(), 2.0)
    assert 0 < load.rows_per_second < 2 * everything and all(each.bucket < BUCKETS // 2 for each in load.hottest)
    assert meter.measure([store_of()], owned, Served(), 3.0) == ServerLoad()
    assert meter.measure([], None, Served(), 4.0) == ServerLoad()


def test_the_time_per_row_comes_from_the_latest_served_rows():
    store, meter, owned, served = store_of(), LoadMeter(), np.ones(BUCKETS, np.bool_), Served(10**6, 500.0)
    assert meter.measure([store], owned, served, 0.0) == ServerLoad()

    def at_the_end(begin: int, seconds_per_row: float, rows_per_second: int) -> float:
        nonlocal served
        for second in range(begin, begin + 120):
            served = served.and_also(rows_per_second, rows_per_second * seconds_per_row)
            load = meter.measure([store], owned, served, float(second))
        return load.seconds_per_row

    assert at_the_end(1, 2e-6, 5000) == pytest.approx(2e-6, rel=0.01)
    # Half as many rows, each of which takes three times as long.
    assert at_the_end(121, 6e-6, 2500) == pytest.approx(6e-6, rel=0.01)
    assert at_the_end(241, 0.0, 0) == pytest.approx(6e-6, rel=0.01), "nothing was served meanwhile"
    assert meter.measure([store_of()], owned, served, 400.0).seconds_per_row == 0.0


def test_a_measured_model_leaves_its_memory_to_the_next_one():
    store, meter = store_of(), LoadMeter()
    meter.measure([store], np.ones(BUCKETS, np.bool_), Served(), 0.0)
    regions, used = store.regions, UsedRegions([(store, store.regions)])
    plan, group, owned, capacity_rows = store.plan, store.group, store.owned, store.capacity_rows
    del store
    after = RowStore(plan, group, owned, capacity_rows, stripes=4, used=used)
    assert [mine is earlier for mine, earlier in zip(after.regions, regions, strict=True)] == [True] * len(regions)
