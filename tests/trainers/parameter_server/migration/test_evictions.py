"""Rows that are evicted while their buckets change servers."""

from __future__ import annotations

from typing import Any

import pytest

from elastrec.trainers.parameter_server.migration.messages import HandOver
from elastrec.trainers.parameter_server.migration.taking import Taker
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from elastrec.trainers.parameter_server.storage.bucket import Bucket
from elastrec.trainers.parameter_server.warm_up import warm_kernels
from tests.trainers.parameter_server.filled import contents, job_with, push
from tests.trainers.parameter_server.migration.moving import BUCKETS, Cluster, cluster

JOB = job_with(BUCKETS, user={"evict_after": 100.0}, item={"evict_after": 100.0})
OLD, HOT = range(600), range(600, 900)


@pytest.fixture(autouse=True, scope="module")
def _warm() -> None:
    """A kernel that compiles in the middle of a request would look like a server out of reach."""
    warm_kernels()


def _evict(server: ParameterServer, now: float) -> None:
    server.now_seconds = lambda: now
    server.evict()


def _begun(moved: Cluster) -> Taker:
    """A change of servers whose taker has copied rows that are old by now; the hot ones were seen since then."""
    giver, after = moved.servers["ps-0"], moved.table(2, moved.routing.owners)
    push([giver], OLD, 0.5, now=1000.0)
    push([giver], HOT, 0.5, now=1000.0)
    taker = Taker(moved.servers["ps-1"], moved.orders(after)["ps-1"], 1, moved.connect)
    taker.copy_round()
    push([giver], HOT, 0.25, now=1150.0)
    return taker


def test_an_eviction_during_the_last_copy_of_a_change_of_servers_loses_no_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with cluster(2, 1, job=JOB) as moved:
        taker, giver = _begun(moved), moved.servers["ps-0"]
        hot = {key: row for key, row in contents([giver], versions=False).items() if key[2] in HOT}
        copy_logged = Bucket._copy_logged

        def evict_first(self: Bucket, *arguments: Any) -> Any:
            _evict(giver, 1150.0)
            return copy_logged(self, *arguments)

        monkeypatch.setattr(Bucket, "_copy_logged", evict_first)
        taker.take_over(moved.table(2, moved.routing.owners))
        monkeypatch.undo()
        giver.drop_left()
        for server in moved.servers.values():
            _evict(server, 1150.0)
        assert len(hot) == 2 * len(HOT)
        assert contents(list(moved.servers.values()), versions=False) == hot


def test_a_server_evicts_no_rows_that_it_does_not_serve() -> None:
    with cluster(2, 1, job=JOB) as moved:
        taker, after = _begun(moved), moved.table(2, moved.routing.owners)
        giver, receiver = moved.servers["ps-0"], moved.servers["ps-1"]
        moved.givers["ps-0"].hand_over(HandOver(server="ps-1", order_id="move-2", generation=1, routing=after), [])
        assert giver.left is not None
        left = [(store, bucket) for store in giver.stores for bucket in giver.left.place.owned.nonzero()[0].tolist()]
        rows = [store.bucket(bucket).rows for store, bucket in left]
        _evict(giver, 1150.0)
        _evict(receiver, 1150.0)
        assert [store.bucket(bucket).rows for store, bucket in left] == rows
        assert sum(usage.rows for usage in giver.usage()) < 2 * len(HOT)
        taker.take_over(after)
        _evict(receiver, 1150.0)
        giver.drop_left()
        assert sum(store.rows for server in moved.servers.values() for store in server.stores) == 2 * len(HOT)
