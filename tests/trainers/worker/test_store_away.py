"""The checkpoint store is away, or has no room, while a trained job is evaluated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from elastrec.checkpoints import StoreError
from elastrec.platform.transport.messages.directive import Mode
from elastrec.trainers.worker import evaluating
from elastrec.trainers.worker.predictions import read_predictions, write_predictions
from tests.trainers.worker.setting import ROWS, setting_fixture  # noqa: F401

SHARDS = 9


class Store:
    """Refuses the first writes of predictions."""

    def __init__(self, refusals: float) -> None:
        self.refusals = refusals
        self.refused = 0

    def write(self, *arguments: Any) -> None:
        if self.refused < self.refusals:
            self.refused += 1
            raise StoreError("could not write: no space left on device")
        write_predictions(*arguments)


def evaluation(here: Any) -> None:
    here.master.add_shards("evaluate", ROWS, 100)
    here.master.command(Mode.EVALUATE)
    here.start_worker()


def test_a_worker_waits_until_the_store_takes_its_predictions(
    setting: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(refusals=2)
    monkeypatch.setattr(evaluating, "write_predictions", store.write)
    here = setting(mode="async")
    evaluation(here)
    here.master.wait_for(lambda: len(here.master.done) == SHARDS)
    here.finish()
    assert store.refused == 2 and not here.errors
    assert len(read_predictions(here.workers[0]._predictions_uri)) == SHARDS


def test_a_waiting_worker_follows_another_directive(
    setting: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(refusals=float("inf"))
    monkeypatch.setattr(evaluating, "write_predictions", store.write)
    here = setting(mode="async")
    evaluation(here)
    here.master.wait_for(lambda: store.refused > 1)
    here.master.command(Mode.EXIT)
    here.threads[0].join(10)
    assert not here.threads[0].is_alive()
    assert not here.errors
