"""The sides of `equal_to_one_process`: torchrec's tables hold the rows of the log, and both sides train the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from benchmarks.common.child import Child, one_core
from benchmarks.models.equal_to_one_process import SIDES, figures_of, train
from benchmarks.models.initial_range import BATCH, Log, model_of, write_log
from benchmarks.processes.torchrec_alone import Vocabulary, numbered, read, tables_of
from elastrec.platform.specs.job import TrainingJob
from elastrec.trainers.models import embedding_tables
from elastrec.trainers.parameter_server.plan import plan_of_job

pytestmark = pytest.mark.services

_STEPS = 3


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    return write_log("ratings", tmp_path_factory.mktemp("data") / "ratings", BATCH * _STEPS)


def job(log: Log) -> TrainingJob:
    content = {"metadata": {"name": "equal"}, "spec": {"model": model_of("din", log), "data": log.data}}
    return TrainingJob.model_validate(content)


def test_tables_hold_every_id_of_the_log_and_know_those_that_no_step_has_used(log: Log) -> None:
    of = job(log)
    table_of = {feature: table.name for table in embedding_tables(of) for feature in table.feature_names}
    trained, scored = read(of, 0, BATCH, _STEPS, shuffled=True), read(of, 1, BATCH, None, shuffled=False)
    vocabulary = Vocabulary(table_of, trained, scored)
    # The history and the item that is rated share a table.
    assert set(vocabulary.ids) == {"user", "group", "item", "genre"}
    row_of_item = {item: row for row, item in enumerate(vocabulary.ids["item"].tolist())}
    for minibatch in (trained[0], scored[0]):
        items, rows = minibatch.sparse["history"].values(), numbered(minibatch, vocabulary).sparse["history"].values()
        assert [row_of_item[item] for item in items.tolist()] == rows.tolist()
    seen = {user for minibatch in trained for user in minibatch.sparse["user"].values().tolist()}
    strangers = [user not in seen for user in vocabulary.ids["user"].tolist()]
    assert [row for row, stranger in enumerate(strangers) if stranger] == vocabulary.never_trained("user").tolist()
    sizes = {
        config.name: config.num_embeddings
        for config in tables_of(of, plan_of_job(of.spec), vocabulary).embedding_bag_configs()
    }
    assert sizes == {table: len(ids) for table, ids in vocabulary.ids.items()}


@pytest.fixture(scope="module")
def processes() -> Iterator[dict[str, Child]]:
    with ExitStack() as stack:
        yield {side: stack.enter_context(Child(module, environment=one_core())) for side, module in SIDES.items()}


@pytest.mark.parametrize("architecture", ["dlrm", "din", "deepfm", "mmoe", "two_tower"])
def test_both_sides_train_the_same_model(processes: dict[str, Child], log: Log, architecture: str) -> None:
    found = {side: train(process, log, architecture, _STEPS, seed=7) for side, process in processes.items()}
    assert found["job"]["rows"] == found["one_process"]["rows"] == BATCH * _STEPS
    for metric in ("auc", "normalized_entropy"):
        assert found["job"][metric] == pytest.approx(found["one_process"][metric], abs=1e-4)


@pytest.mark.parametrize("side", list(SIDES))
def test_a_training_does_not_affect_later_ones_in_the_same_process(
    processes: dict[str, Child], log: Log, side: str
) -> None:
    first, _, again = (train(processes[side], log, "dcn_v2", _STEPS, seed=seed) for seed in (7, 8, 7))
    assert again == first


def test_a_goal_is_missed_on_either_side() -> None:
    alone = [{"auc": [value], "normalized_entropy": [0.9]} for value in (0.70, 0.72)]
    for shift, is_met in ((0.0005, True), (0.002, False), (-0.002, False)):
        found = [{**each, "auc": [each["auc"][0] + shift]} for each in alone]
        auc, entropy = figures_of("clicks.dlrm.20_steps", {"job": found, "one_process": alone})
        assert (auc.met, entropy.met) == (is_met, True)
        assert auc.value == pytest.approx(shift)
