"""The state that a master without the journal of the one before it continues."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from elastrec.checkpoints import list_terms
from elastrec.platform.clusters.pods import PodSpec, PodStatus
from elastrec.platform.master.machine.phases import NUMBERS_PER_TERM
from elastrec.platform.master.pods.requests import open_requests
from elastrec.platform.specs.errors import ClusterError, SpecError
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.specs.shape import Shape
from elastrec.platform.transport.messages.ledger import Explanation, GetExplanation
from elastrec.platform.transport.messages.observer import (
    ChangeShape,
    OrdersAnswer,
    OrderWorkers,
    ShapeAnswer,
    WorkerOrder,
)
from tests.platform.master.masters import Make, counted, saved, stage_fixture, trained  # noqa: F401
from tests.shapes import change

pytestmark = pytest.mark.usefixtures("some_fleet")


def test_a_master_without_its_journal_continues_from_the_newest_record(stage: Make):
    s = stage()
    s.start()
    trained(s, 20)
    uri = saved(s)
    trained(s, 40)
    s.stop()
    successor = stage("another")
    successor.start()
    state = successor.service.state
    assert state.phases.term == 2
    assert state.phases.generation == NUMBERS_PER_TERM and state.phases.version > NUMBERS_PER_TERM
    assert state.recovery.number == NUMBERS_PER_TERM + 1 and state.recovery.uri == uri
    assert state.ownership.epoch > NUMBERS_PER_TERM
    successor.wait_for(Phase.SUCCEEDED)
    positions = s.service.state.recovery.record
    assert positions is not None
    assert counted(positions.positions, successor) == [1] * 4000
    timeline = [entry.what for entry in successor.call(GetExplanation(), Explanation).timeline]
    assert any(line.startswith(f"resumed from {uri} at ") for line in timeline), timeline
    assert successor.metrics().samples_trained >= 4000


@pytest.mark.parametrize("is_enlarged_by_launch", [False, True])
def test_a_master_without_its_journal_continues_with_the_pods_that_the_job_had(
    stage: Make, is_enlarged_by_launch: bool
):
    s = stage()
    s.start()
    trained(s, 20)
    asked = change(parameter_servers=3, parameter_server_memory_bytes=3 * 2**30, workers=3)
    assert s.call(ChangeShape(change=asked), ShapeAnswer).accepted
    s.wait(lambda: not open_requests(s.service.state))
    saved(s)
    s.stop()
    successor = stage("another")
    began, named = Shape.of(successor.request.training_job.spec.resources), {}
    if is_enlarged_by_launch:
        content = copy.deepcopy(successor.request.job)
        content["spec"]["resources"]["parameter_server"]["memory"] = 2**32
        successor.request = msgspec.structs.replace(successor.request, job=content)
        named = change(parameter_server_memory_bytes=2**32)
    successor.start()
    state = successor.service.state
    assert state.wanted_shape == began.changed(asked).changed(named)
    successor.wait_for(Phase.TRAINING)
    causes = [entry.cause for entry in successor.call(GetExplanation(), Explanation).timeline]
    kept = "3 servers, 3 workers" if is_enlarged_by_launch else "3 servers, 3Gi of memory per server, 3 workers"
    assert any(f"the job had {kept} then" in cause for cause in causes)
    assert len(state.owners()) == state.wanted_shape[Role.PARAMETER_SERVER].count
    successor.wait_for(Phase.SUCCEEDED)


def test_a_master_without_its_journal_gives_workers_the_orders_for_all_of_them_again(stage: Make):
    s = stage()
    s.start()
    trained(s, 20)
    half = WorkerOrder(batch_size=5, learning_rate_scale=0.5)
    assert s.call(OrderWorkers(order=half), OrdersAnswer).workers
    s.wait(lambda: s.service.state.standing_orders is not None)
    saved(s)
    s.stop()
    successor = stage("another")
    successor.start()
    successor.wait_for(Phase.TRAINING)
    state = successor.service.state
    given = [worker.orders for worker in state.membership.workers() if worker.is_registered]
    assert given and all(each and (each.batch_size, each.learning_rate_scale) == (5, 0.5) for each in given)
    causes = [entry.cause for entry in successor.call(GetExplanation(), Explanation).timeline]
    assert any("as ordered then, its workers have batch size 5, learning rates × 0.5" in cause for cause in causes)


def test_a_job_that_continues_on_smaller_nodes_has_the_sizes_of_its_launch(stage: Make):
    s = stage()
    s.start()
    trained(s, 20)
    assert s.call(ChangeShape(change=change(parameter_server_memory_bytes=3 * 2**30)), ShapeAnswer).accepted
    s.wait(lambda: not open_requests(s.service.state))
    saved(s)
    s.stop()
    for name in [name for name in s.cluster.pods if "-ps-" in name]:
        s.cluster.delete(name)
        s.pods[name].killed.set()
    create = s.cluster.create

    def create_small(pod: PodSpec) -> PodStatus:
        if pod.size.memory_bytes > 2 * 2**30:
            raise ClusterError(f"pod {pod.name} does not fit: asked {pod.size.memory_bytes}")
        return create(pod)

    s.cluster.create = create_small  # type: ignore[method-assign]
    successor = stage("another")
    successor.start()
    successor.wait_for(Phase.TRAINING)
    began = Shape.of(successor.request.training_job.spec.resources)
    assert successor.service.state.wanted_shape == began
    assert {server.memory_bytes for server in successor.service.state.owners()} == {
        began[Role.PARAMETER_SERVER].size.memory_bytes
    }
    assert "does not fit" in str(successor.call(GetExplanation(), Explanation).timeline)
    successor.wait_for(Phase.SUCCEEDED)


@pytest.mark.parametrize(
    ("training", "field"),
    [
        ({"batches_per_shard": 4}, "batch_size times batches_per_shard: 40 is not allowed; allowed: 20, as when"),
        ({"epochs": 2}, "spec.training.epochs: 2 is not allowed; allowed: 1, as when"),
        ({"seed": 9}, "spec.training.seed: 9 is not allowed"),
    ],
)
def test_positions_that_do_not_fit_the_job_are_refused_by_name_with_the_way_on(
    stage: Make, training: dict[str, Any], field: str
):
    s = stage()
    s.start()
    trained(s, 5)
    saved(s)
    s.stop()
    changed = stage("another", training)
    with pytest.raises(SpecError) as caught:
        changed.start()
    assert field in str(caught.value)
    assert "with another run key, or spec.continual.resume: never" in str(caught.value)
    # Who cannot go on takes no term.
    assert [term.term for term in list_terms(s.request.store, s.job_name, s.request.job_id)] == [1]
