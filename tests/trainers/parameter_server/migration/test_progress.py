"""The progress report of a copying server: remaining buckets, the reason for a stall, and whether it is permanent."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from elastrec.platform.specs.errors import AuthenticationError, ElastrecError, IncompatibleError, TransportError
from elastrec.platform.transport.messages.job import CopyProgress
from elastrec.trainers.parameter_server.migration import giving, mover
from elastrec.trainers.parameter_server.migration.mover import Mover
from elastrec.trainers.parameter_server.migration.taking import Taker
from elastrec.trainers.parameter_server.storage import ServerMemoryError
from elastrec.trainers.parameter_server.warm_up import warm_kernels
from tests.processes import wait_for
from tests.trainers.parameter_server.migration.moving import BUCKETS, Cluster, Worker, cluster

WAIT_SECONDS = 60


@pytest.fixture(autouse=True, scope="module")
def _warm() -> None:
    """A kernel that compiles in the middle of a request would look like a server out of reach."""
    warm_kernels()


class Faulty:
    """A stream that raises an error where `error` gives one for a request."""

    def __init__(self, stream: Any, error: Callable[[], Exception | None]) -> None:
        self.stream, self.error = stream, error

    def request(self, message: Any) -> Any:
        if (error := self.error()) is not None:
            raise error
        return self.stream.request(message)

    def cut(self) -> None:
        self.stream.cut()

    def close(self) -> None:
        self.stream.close()


def moving(moved: Cluster, count: int, errors: dict[str, Exception | None], asked: list[str]) -> tuple[Mover, Any]:
    """A mover of the last of so many servers, and its order; `errors` by the name of the server that is asked."""
    after = moved.table(count, moved.routing.owners)
    names = {rpc.address: name for name, rpc in moved.rpcs.items()}

    def connect(address: str) -> Any:
        def error() -> Exception | None:
            asked.append(names[address])
            return errors.get(names[address])

        return Faulty(moved.connect(address), error)

    name = f"ps-{count - 1}"
    return Mover(moved.servers[name], connect, lambda: None), moved.orders(after)[name]


def said(copier: Mover) -> CopyProgress:
    progress = copier.progress()
    assert progress is not None
    return progress


def movers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "mover"]


def test_copying_again_without_another_server_does_not_count_as_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(giving, "PART_BYTES", 1)  # an answer holds one bucket, or a part of one
    with cluster(3, 2) as moved:
        worker = Worker(moved.routing)
        worker.step()
        after, is_away = moved.table(3, moved.routing.owners), True
        lost = TransportError("out of reach", retryable=True)

        def connect(address: str) -> Any:
            is_second = address == moved.rpcs["ps-1"].address
            return Faulty(moved.connect(address), lambda: lost if is_second and is_away else None)

        order = moved.orders(after)["ps-2"]
        assert [source.server for source in order.sources] == ["ps-0", "ps-1"]
        taker = Taker(moved.servers["ps-2"], order, 1, connect)
        assert taker.buckets_left == sum(len(source.buckets) for source in order.sources)
        with pytest.raises(TransportError, match="out of reach"):
            taker.copy_round()
        first, copied_bytes = taker.advance, taker.copied_bytes
        assert first >= len(order.sources[0].buckets) and taker.buckets_left == len(order.sources[1].buckets)
        for _ in range(3):
            worker.step()
            with pytest.raises(TransportError, match="out of reach"):
                taker.copy_round()
        assert taker.copied_bytes > copied_bytes, "rows that the first server has changed"
        assert taker.advance == first
        is_away = False
        taker.copy_round()
        assert taker.advance > first and taker.buckets_left == 0
        whole = taker.advance
        taker.copy_round()
        assert taker.advance > whole, "each round that ends is progress"
        taker.give_up()
        worker.client.close()


@pytest.mark.parametrize("kind", [IncompatibleError, AuthenticationError, ZeroDivisionError])
def test_a_permanent_error_is_reported_and_not_retried(kind: type[Exception]) -> None:
    asked: list[str] = []
    with cluster(2, 1) as moved:
        copier, order = moving(moved, 2, {"ps-0": kind("other code")}, asked)
        copier.follow(order, 1)
        wait_for(lambda: said(copier).is_permanent, WAIT_SECONDS, "an error that never passes")
        wait_for(lambda: not movers(), WAIT_SECONDS, "the end of the thread")
        assert asked == ["ps-0"] and "other code" in said(copier).problem and not copier.copied
        copier.cancel()
        assert copier.progress() is None
        # Nothing is left of it: another order is carried out.
        copier, order = moving(moved, 2, {}, asked)
        copier.follow(order, 1)
        wait_for(lambda: copier.copied == order.order_id, WAIT_SECONDS, "an order that is copied")
        copier.cancel()


@pytest.mark.parametrize("error", [TransportError("out of reach", retryable=True), ElastrecError("it has gone on")])
def test_a_retryable_error_is_reported_until_the_order_makes_progress(
    monkeypatch: pytest.MonkeyPatch, error: ElastrecError
) -> None:
    monkeypatch.setattr(mover, "_RETRY_SECONDS", 0.001)
    asked: list[str] = []
    errors: dict[str, Exception | None] = {"ps-1": error}
    with cluster(3, 2) as moved:
        worker = Worker(moved.routing)
        worker.step()
        copier, order = moving(moved, 3, errors, asked)
        copier.follow(order, 1)
        wait_for(lambda: asked.count("ps-1") > 5, WAIT_SECONDS, "several tries")
        progress = said(copier)
        assert progress.problem == str(error) and not progress.is_permanent
        assert progress.buckets_left >= len(order.sources[1].buckets) < BUCKETS
        advance = progress.advance
        wait_for(lambda: asked.count("ps-1") > 10, WAIT_SECONDS, "more tries")
        assert said(copier).advance == advance > 0, "what is copied again is no progress"
        errors.clear()
        wait_for(lambda: copier.copied == order.order_id, WAIT_SECONDS, "an order that is copied")
        assert said(copier).problem == "" and said(copier).advance > advance
        copier.cancel()
        worker.client.close()


@pytest.mark.parametrize("kind", [IncompatibleError, ServerMemoryError])
def test_a_hand_over_is_tried_again_after_every_error_and_names_it(
    monkeypatch: pytest.MonkeyPatch, kind: type[ElastrecError]
) -> None:
    monkeypatch.setattr(mover, "_RETRY_SECONDS", 0.01)
    asked: list[str] = []
    errors: dict[str, Exception | None] = {"ps-0": kind("other code")}
    with cluster(2, 1) as moved:
        after = moved.table(2, moved.routing.owners)
        copier, order = moving(moved, 2, errors, asked)
        problems: list[str] = []

        def is_wanted() -> bool:
            progress = copier.progress()
            problems.append(progress.problem if progress is not None else "")
            if len(asked) > 2:
                errors.clear()
            return True

        assert copier.take_over(order, 1, after, is_wanted)
        assert "other code" in problems[-1] and copier.taken == order.order_id and copier.progress() is None
        copier.cancel()
        moved.servers["ps-0"].drop_left()
