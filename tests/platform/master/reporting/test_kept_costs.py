"""The cost of a resumed job: that of its earlier masters counts, as far as they have left it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

from elastrec.checkpoints import StoreError, open_store
from elastrec.platform.history import metric_names as names
from elastrec.platform.history.points import Costs, Point
from elastrec.platform.master.pods.launch import LaunchRequest
from elastrec.platform.master.reporting import kept_costs
from elastrec.platform.master.reporting.kept_costs import earlier_costs, keep_costs
from elastrec.platform.master.service.history_sink import HistorySink
from elastrec.platform.specs.metrics import Phase
from tests.platform.master.fakes import job, launch
from tests.platform.master.histories import history, running
from tests.platform.master.masters import Make, saved, stage_fixture, stop_job, trained  # noqa: F401
from tests.platform.master.stage import Stage

pytestmark = pytest.mark.usefixtures("some_fleet")

Counting = Callable[..., HistorySink]


@pytest.fixture(name="counting")
def counting_fixture() -> Iterator[Counting]:
    """Gives a master, before it starts, a pod of four cores that has been running for a thousand seconds."""
    with contextlib.ExitStack() as stack:

        def give(s: Stage, pod: str, points: list[Point] | None = None) -> HistorySink:
            sink = s.history = history(running(pod, 4.0, 1000.0), points=points)
            stack.callback(sink.close)
            return sink

        yield give


@contextlib.contextmanager
def slow(s: Stage) -> Iterator[None]:
    """Steps take so long that the job does not end meanwhile: costs are counted once a second."""
    s.fail_on = lambda pod, shard: time.sleep(0.1)
    yield
    s.fail_on = lambda pod, shard: None


def counted(s: Stage, sink: HistorySink, core_seconds: float) -> None:
    s.wait(lambda: sink.costs.core_seconds >= core_seconds)


def saved_with_costs(s: Stage) -> Costs:
    """Makes a record; returns the costs that were kept with it."""
    saved(s)
    s.wait(lambda: earlier_costs(s.request) is not None)
    costs = earlier_costs(s.request)
    assert costs is not None
    return costs


def test_the_cost_of_a_stopped_job_counts_after_it_was_resumed(stage: Make, counting: Counting) -> None:
    s = stage()
    first = counting(s, "ps-0")
    with slow(s):
        s.start()
        trained(s, 20)
        of_record = saved_with_costs(s).core_seconds
        # After the record, too.
        counted(s, first, max(4000.0, of_record + 1.0))
        stop_job(s)
    s.stop()
    second, points = stage("another"), list[Point]()
    sink = counting(second, "ps-1", points)
    second.start()
    assert max(4000.0, of_record + 1.0) <= sink.costs.core_seconds <= first.costs.core_seconds
    second.wait_for(Phase.SUCCEEDED)
    counted(second, sink, 8000.0)
    second.wait(lambda: any(point.name == names.SAMPLES_PER_CORE_SECOND for point in points))
    by_name = {point.name: point.value for point in points}
    assert min(point.value for point in points if point.name == names.CORE_HOURS) * 3600 >= 8000.0
    assert by_name[names.SAMPLES_PER_CORE_SECOND] == pytest.approx(
        second.service.metrics().samples_trained / sink.costs.core_seconds, rel=1e-3
    )


def test_of_a_master_that_was_killed_the_cost_until_its_last_record_counts(stage: Make, counting: Counting) -> None:
    s = stage()
    first = counting(s, "ps-0")
    with slow(s):
        s.start()
        trained(s, 20)
        counted(s, first, 4000.0)
        assert saved_with_costs(s).core_seconds >= 4000.0
        s.server.shutdown()
        second = stage("another")
        sink = counting(second, "ps-1")
        second.start()
    assert sink.costs.core_seconds >= 4000.0 and sink.costs.samples_before == 0
    # The next process has it from its own folder, whatever has become of the store.
    second.stop()
    open_store(second.request.store).delete(f"{second.job_name}/ledger/{second.request.job_id}.costs.json")
    sink = counting(second, "ps-1")
    second.start()
    assert sink.costs.core_seconds >= 4000.0


def test_samples_of_masters_whose_cost_is_unknown_are_not_divided_by_the_cost_of_the_last_one(
    stage: Make, counting: Counting
) -> None:
    s = stage()
    s.start()
    trained(s, 20)
    saved(s)
    s.stop()
    second = stage("another")
    sink = counting(second, "ps-1")
    second.start()
    assert 0 < sink.costs.samples_before == second.service.state.samples_before


@pytest.fixture
def request_of_a_job(tmp_path_factory: pytest.TempPathFactory) -> LaunchRequest:
    return launch(str(tmp_path_factory.mktemp("kept") / "store"), job())


def test_the_costs_are_those_of_this_run_of_the_job(request_of_a_job: LaunchRequest) -> None:
    open_store(request_of_a_job.store).create()
    assert earlier_costs(request_of_a_job) is None
    keep_costs(request_of_a_job, 2, Costs(core_seconds=5.0))
    assert earlier_costs(request_of_a_job) == Costs(core_seconds=5.0)
    trained_again = msgspec.structs.replace(request_of_a_job, earlier_terms=2)
    assert earlier_costs(trained_again) is None


@pytest.mark.parametrize("is_away", [False, True])
def test_costs_that_cannot_be_read_do_not_delay_the_job(
    request_of_a_job: LaunchRequest, monkeypatch: pytest.MonkeyPatch, *, is_away: bool
) -> None:
    store = open_store(request_of_a_job.store)
    store.create()
    store.put(f"{request_of_a_job.training_job.metadata.name}/ledger/{request_of_a_job.job_id}.costs.json", b"rubbish")
    if is_away:

        def away(uri: str) -> object:
            raise StoreError("the store does not answer")

        monkeypatch.setattr(kept_costs, "open_store", away)
    assert earlier_costs(request_of_a_job) is None
