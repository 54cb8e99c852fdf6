"""The pulls of steps: the age of their parameters, with and without overlap, and pulls of copied features."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.transport.messages.directive import Mode
from elastrec.trainers.embedding.client import Pulled
from elastrec.trainers.models import FeatureSchema
from elastrec.trainers.parameter_server.messages import GetStats
from elastrec.trainers.worker import parameter_server_trainer
from elastrec.trainers.worker.feed import Feed
from tests.trainers.worker.setting import BATCH, ROWS, SHARD, Setting, setting_fixture, trained_samples  # noqa: F401

STEPS = ROWS // BATCH
AFTER = 6
Make = Callable[..., list[int]]


@pytest.fixture
def applied_before_pulls(
    scripted_master: Callable[..., object],
    tiny_job: Callable[..., TrainingJob],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Make]:
    """Trains all rows with one async worker; returns, for each pull, the number of pushes that the server had applied.

    Rows and dense parameters are in the same answer, so they have the same age.
    """
    made: list[Setting] = []
    # The next minibatch is always there in time: whether pulls overlap does not depend on the reader's speed.
    peek = Feed.peek
    monkeypatch.setattr(Feed, "peek", lambda feed, _seconds: peek(feed, 30.0))

    def run(**training: Any) -> list[int]:
        job = tiny_job(mode="async")
        spec = job.spec.model_copy(update={"training": job.spec.training.model_copy(update=training)})
        here = Setting(job.model_copy(update={"spec": spec}), scripted_master, tmp_path, 1)
        made.append(here)
        (server,) = here.servers
        seen: list[int] = []
        answer = server._pull

        def recorded(*arguments: Any, **named: Any) -> Any:
            seen.append(server._pushes)
            return answer(*arguments, **named)

        server._pull = recorded
        here.master.add_shards("train", ROWS, ROWS, shuffle=True)
        here.start_worker()
        here.master.wait_for(lambda: len(here.master.done) == 1)
        here.finish()
        assert not here.errors and trained_samples(here) == ROWS
        return seen

    yield run
    for each in made:
        each.close()


def test_no_step_of_a_short_job_is_stale_by_default(applied_before_pulls: Make) -> None:
    assert parameter_server_trainer.OVERLAP_AFTER_STEPS > STEPS
    assert applied_before_pulls() == list(range(STEPS))


def test_steps_lack_one_push_after_the_first_steps(applied_before_pulls: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameter_server_trainer, "OVERLAP_AFTER_STEPS", AFTER)
    expected = [*range(AFTER + 1), *range(AFTER, STEPS - 1)]
    assert applied_before_pulls() == expected


def test_a_job_may_overlap_from_its_first_step(applied_before_pulls: Make) -> None:
    assert applied_before_pulls(overlap_pull=True) == [0, *range(STEPS - 1)]


def test_a_job_may_never_overlap(applied_before_pulls: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameter_server_trainer, "OVERLAP_AFTER_STEPS", 0)
    assert applied_before_pulls(overlap_pull=False) == list(range(STEPS))


@pytest.fixture
def trained(
    scripted_master: Callable[..., object],
    tiny_job: Callable[..., TrainingJob],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[Setting, Any]]:
    """A worker that trains alone, has done its first steps, and has more to train."""
    monkeypatch.setattr(parameter_server_trainer, "OVERLAP_AFTER_STEPS", AFTER)
    here = Setting(tiny_job(mode="async"), scripted_master, tmp_path, 2)
    try:
        here.master.finished = False
        here.master.add_shards("train", ROWS, AFTER * BATCH)
        del here.master.todo[1:]
        worker = here.start_worker()
        here.master.wait_for(lambda: len(here.master.done) == 1)
        assert worker.trainer.overlaps(here.sessions[0].directive)
        yield here, worker
        here.finish()
        assert not here.errors
    finally:
        here.close()


def _reach(here: Setting, *names: str) -> None:
    version = here.master.version
    for name in names:
        here.master.wait_for(lambda name=name: here.master.reached.get(name, 0) >= version)


def test_pulls_of_several_workers_do_not_overlap_by_default(trained: tuple[Setting, Any]) -> None:
    here, worker = trained
    joined = here.start_worker("worker-1")
    _reach(here, "worker-0", "worker-1")
    for each, session in zip((worker, joined), here.sessions, strict=True):
        assert not each.trainer.overlaps(session.directive)


def test_after_a_rollback_to_the_beginning_the_first_steps_do_not_overlap(trained: tuple[Setting, Any]) -> None:
    here, worker = trained
    with here.master.changed:
        here.master.roll_back([])
        here.master.restored = dict.fromkeys(here.master.addresses, here.master.restore.order_id)
    here.restore()
    _reach(here, "worker-0")
    assert not worker.trainer.overlaps(here.sessions[0].directive)


@pytest.mark.parametrize("overlap", ["auto", False])
def test_steps_of_bsp_never_overlap(
    scripted_master, tiny_job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overlap: bool | str
) -> None:
    monkeypatch.setattr(parameter_server_trainer, "OVERLAP_AFTER_STEPS", 0)
    job = tiny_job(mode="bsp")
    spec = job.spec.model_copy(update={"training": job.spec.training.model_copy(update={"overlap_pull": overlap})})
    here = Setting(job.model_copy(update={"spec": spec}), scripted_master, tmp_path, 1)
    try:
        here.master.add_shards("train", ROWS, ROWS)
        worker = here.start_worker()
        here.master.wait_for(lambda: len(here.master.done) == 1)
        assert not worker.trainer.overlaps(here.sessions[0].directive)
        here.master.command(Mode.EVALUATE)
        here.finish()
    finally:
        here.close()


class Plain(nn.Module):
    """Sums the numbers of all rows of a sample."""

    def __init__(self, embedding_bag_collection: nn.Module, schema: FeatureSchema) -> None:
        super().__init__()
        self.rows = embedding_bag_collection
        self.scale = nn.Parameter(torch.ones(()))

    def passed(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        return features

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        return self.rows(self.passed(sparse_features)).values().sum(dim=1) * self.scale


class Moved(Plain):
    """As models that torchrec's examples put on a device."""

    def passed(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        return features.to(torch.device("cpu"))


class Made(Plain):
    """Makes features of its own."""

    def passed(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        return KeyedJaggedTensor(features.keys(), features.values().clone(), lengths=features.lengths())


def train(setting: Callable[..., Any], model: type[Plain]) -> tuple[int, int]:
    """Numbers of pulls, and of pulls that are still in memory after the last step."""
    before = _in_memory()
    here = setting(servers=1, architecture=f"{__name__}:{model.__name__}")
    here.master.add_shards("train", ROWS, SHARD)
    here.start_worker()
    here.master.wait_for(lambda: len(here.master.done) == 4)
    here.finish()
    assert not here.errors
    return here.servers[0].stats(GetStats()).pulls, _in_memory() - before


def _in_memory() -> int:
    gc.collect()
    return sum(isinstance(each, Pulled) for each in gc.get_objects())


@pytest.mark.parametrize(("model", "pulls"), [(Plain, 1), (Moved, 1), (Made, 2)])
def test_rows_are_pulled_once_for_copied_features_and_kept_for_no_step_that_is_over(
    setting: Callable[..., Any], model: type[Plain], pulls: int
) -> None:
    pulled, kept = train(setting, model)
    assert (pulled, kept <= 2) == (pulls * STEPS, True)
