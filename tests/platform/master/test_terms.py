"""Only one master is active: limits of a superseded master, and the state that its successor continues."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.compute as pc
import pytest

from elastrec.checkpoints import (
    SupersededError,
    catalog,
    list_records,
    list_terms,
    newest_records,
    newest_term,
    take_term,
)
from elastrec.platform.clusters.pods import PodSpec, PodStatus
from elastrec.platform.jobs.watching.past import _pages
from elastrec.platform.master.machine.phases import NUMBERS_PER_TERM
from elastrec.platform.master.pods.requests import open_requests
from elastrec.platform.master.reporting.explanation import read_explanation
from elastrec.platform.master.reporting.ledger import ledger_table, read_ledger
from elastrec.platform.master.service import observers, service, term_watch
from elastrec.platform.master.service.resumption import resumed_from
from elastrec.platform.master.service.service import JobService
from elastrec.platform.specs.errors import ClusterError, SpecError, TransportError
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.specs.shape import Shape
from elastrec.platform.transport import RpcClient
from elastrec.platform.transport.messages.ledger import Explanation, GetExplanation, StreamNow
from elastrec.platform.transport.messages.observer import (
    ChangeShape,
    GetStatus,
    OrdersAnswer,
    OrderWorkers,
    SaveNow,
    ShapeAnswer,
    Status,
    WorkerOrder,
)
from tests.platform.master.masters import (  # noqa: F401
    Make,
    committed,
    counted,
    rival,
    saved,
    stage_fixture,
    stop_job,
    trained,
)
from tests.platform.master.stage import Stage
from tests.shapes import change

pytestmark = pytest.mark.usefixtures("some_fleet")


def test_a_job_has_a_term_before_its_first_pod_and_every_directive_and_record_names_it(stage: Make):
    s = stage()
    terms_at_creation: list[int] = []
    play = s.cluster.on_create

    def look(spec: Any) -> None:
        term = newest_term(s.request.store, s.job_name, s.request.job_id)
        assert term is not None and term.address == s.address
        terms_at_creation.append(term.term)
        play(spec)

    s.cluster.on_create = look
    s.start()
    trained(s, 5)
    uri = saved(s)
    assert terms_at_creation == [1, 1, 1, 1]
    assert s.service.state.directive("clicks-1-worker-0", s.pods["clicks-1-worker-0"].incarnation).term == 1
    assert [(found, manifest.term) for found, manifest in list_records(s.request.store, s.job_name)] == [(uri, 1)]


def test_a_killed_master_with_its_journal_continues_in_its_term(stage: Make):
    s = stage()
    s.start()
    trained(s, 5)
    s.stop()
    s.start()
    s.wait_for(Phase.SUCCEEDED)
    assert [term.term for term in list_terms(s.request.store, s.job_name, s.request.job_id)] == [1]
    assert s.rows_trained() == [1] * 4000


def test_a_master_that_moved_with_its_journal_takes_the_next_term_and_its_pods_follow(stage: Make):
    s = stage()
    s.start()
    trained(s, 5)
    before = s.address
    s.stop()
    s.address = ""
    s.start()
    assert s.address != before
    s.wait_for(Phase.SUCCEEDED)
    terms = list_terms(s.request.store, s.job_name, s.request.job_id)
    assert [(term.term, term.address) for term in terms] == [(1, before), (2, s.address)]
    # The journal knows what every pod holds: nothing is rolled back, and nobody is replaced.
    assert s.service.state.phases.generation == 0
    assert not s.service.state.membership.losses
    assert s.rows_trained() == [1] * 4000
    timeline = [entry.what for entry in s.call(GetExplanation(), Explanation).timeline]
    assert f"the master moved to {s.address} (term 2)" in timeline


def test_a_record_that_an_earlier_master_prunes_while_the_term_is_taken_is_not_continued_from(
    stage: Make, monkeypatch: pytest.MonkeyPatch
):
    s, successor = stage(rows=100_000, keep=1), stage("another", rows=100_000, keep=1)
    s.start()
    trained(s, 5)
    first = saved(s)
    newer: list[str] = []

    def find_and_be_overtaken(*arguments: Any) -> Any:
        found = resumed_from(*arguments)
        if not newer:
            newer.append(saved(s))
            s.wait(lambda: committed(s) == newer)
        return found

    monkeypatch.setattr(service, "resumed_from", find_and_be_overtaken)
    successor.start()
    state = successor.service.state
    assert newer and newer != [first]
    assert state.recovery.uri == newer[0] and state.phases.term == 3


def test_a_superseded_master_commits_nothing_ends_and_touches_no_pod(stage: Make):
    s = stage(rows=100_000)
    s.start()
    trained(s, 5)
    first = saved(s)
    pods = set(s.cluster.pods)
    rival(s, first)
    assert s.call(SaveNow()).accepted
    s.wait(lambda: bool(s.service.superseded))
    s.service.wait_until_done()
    assert "the master at 127.0.0.1:9 has taken term 2; this one had term 1" in s.service.superseded
    assert committed(s) == [first]
    with pytest.raises(TransportError, match="has taken term 2"):
        s.call(GetStatus(), Status, seconds=0.3)
    s.service.close()
    assert set(s.cluster.pods) == pods and not s.cluster.deleted
    assert s.service.state.phase is Phase.TRAINING


def test_a_late_record_of_an_older_master_is_never_the_newest(stage: Make, monkeypatch: pytest.MonkeyPatch):
    # Of its two records it would keep one.
    s = stage(rows=100_000, keep=1)
    s.start()
    trained(s, 5)
    first = saved(s)
    check = s.service._term_watch.check
    stolen: list[int] = []

    def steal() -> None:
        check()
        # Between this master's look at the terms and its manifest another one takes over.
        if not stolen:
            stolen.append(rival(s, first))

    monkeypatch.setattr(s.service._term_watch, "check", steal)
    late = saved(s)
    assert stolen == [2]
    # The next look finds the other master: before another commit rather than with the half minute's regular look.
    assert s.call(SaveNow()).accepted
    s.wait(lambda: bool(s.service.superseded))
    # Neither was anything pruned after it, nor does the successor's history hold the late record.
    assert committed(s) == [first, late]
    newest = next(newest_records(s.request.store, s.job_name, job_id=s.request.job_id))
    assert newest.uri == first


def test_a_superseded_master_does_not_replace_silent_pods(stage: Make):
    s = stage(rows=100_000, silence=1.5)
    s.start()
    trained(s, 5)
    rival(s)
    for pod in s.pods.values():
        pod.killed.set()  # they are heard elsewhere
    s.wait(lambda: bool(s.service.superseded))
    assert not s.cluster.deleted and not s.service.state.membership.losses


def test_a_master_that_has_nothing_to_do_still_finds_that_it_was_superseded(
    stage: Make, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(term_watch, "PERIOD_SECONDS", 0.05)
    # So many that the job's end, where it would look by itself, is out of reach.
    s = stage(rows=5_000_000)
    s.start()
    trained(s, 5)
    pods = set(s.cluster.pods)
    # It saves nothing, hears everybody, and has no pod to make: nothing else makes it look.
    assert s.service.state.plan.save_interval_seconds == 0
    rival(s)
    s.wait(lambda: bool(s.service.superseded))
    s.service.wait_until_done()
    s.service.close()
    assert set(s.cluster.pods) == pods and not s.cluster.deleted


def test_term_checks_continue_during_an_outage_of_the_store_until_the_master_or_its_term_ends(
    stage: Make, tmp_path: Path
):
    s = stage()
    found: list[str] = []
    waited: list[float] = []
    watch = term_watch.TermWatch(s.request, lambda: (1, "holder"), lambda: found.append("superseded"))
    store = Path(s.request.store)

    def wait(seconds: float) -> bool:
        """Plays what happens between two looks."""
        waited.append(seconds)
        if len(waited) == 2:
            store.rename(tmp_path / "elsewhere")
            store.write_text("no folder")
        elif len(waited) == 3:
            store.unlink()
            (tmp_path / "elsewhere").rename(store)
            rival(s)
        return len(waited) == 5

    take_term(
        s.request.store, s.job_name, s.request.job_id, holder="holder", address="127.0.0.1:8", base=lambda: ""
    )  # fmt: skip
    watch.look_regularly(wait)
    assert waited == [term_watch.PERIOD_SECONDS] * 3 and found == ["superseded"]
    assert "has taken term 2" in watch.superseded
    watch.look_regularly(wait)
    assert len(waited) == 3
    other = term_watch.TermWatch(s.request, lambda: (2, "rival"), lambda: found.append("never"))
    other.look_regularly(wait)
    assert len(waited) == 5 and found == ["superseded"]


def test_pruning_looks_for_a_higher_term_before_each_deletion(stage: Make):
    s = stage(rows=100_000)
    s.start()
    for shards in (5, 10, 15):
        trained(s, shards)
        saved(s)
    looks: list[int] = []

    def check() -> None:
        looks.append(len(looks))
        if len(looks) == 2:
            raise SupersededError("another master has taken term 2")

    before = committed(s)
    with pytest.raises(SupersededError):
        catalog.prune(s.request.store, s.job_name, s.request.job_id, keep=1, check=check)
    assert len(committed(s)) == 2 and committed(s)[0] == before[0]


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


def test_terms_of_an_ended_run_are_not_continued(stage: Make):
    s = stage()
    s.start()
    s.wait_for(Phase.SUCCEEDED)
    s.stop()
    again = stage("another")
    again.request = msgspec.structs.replace(again.request, earlier_terms=1)
    again.start()
    state = again.service.state
    assert state.phases.term == 2 and not state.recovery.records and state.training.samples == 0


def test_a_master_killed_between_taking_and_journalling_its_term_begins_the_job_in_that_term(stage: Make):
    s = stage()
    service = JobService(s.request, s.cluster, s.folder, token="secret")
    take_term(
        s.request.store, s.job_name, s.request.job_id,
        holder=service.state.plan.holder, address="127.0.0.1:7", base=lambda: "",
    )  # fmt: skip
    service.journal.close()
    again = JobService(s.request, s.cluster, s.folder, token="secret")
    assert not again.is_continued
    again.start("127.0.0.1:7")
    assert again.state.phases.term == 1 and len(again.state.membership.members) == 4
    again.close()


def test_the_ledgers_of_a_stopped_job_and_of_its_second_life_hold_every_row_once(stage: Make):
    s = stage()
    s.start()
    trained(s, 20)
    uri = saved(s)
    trained(s, 40)
    stop_job(s)
    s.stop()
    record = s.service.state.recovery.record
    assert record is not None
    second = stage("another")
    second.start()
    # What the master shows before and after the end of the job is what it leaves.
    live = [entry.what for entry in second.call(GetExplanation(), Explanation).timeline]
    assert live[live.index("stopped") + 1].startswith("resumed from")
    second.wait_for(Phase.SUCCEEDED)
    shown = second.call(GetExplanation(), Explanation)
    again = second.service.state.training.samples - 4000
    second.stop()
    table = read_ledger(second.request.store, second.request.job_id)
    assert table is not None
    rows = table.filter(pc.equal(table.column("kind").cast("string"), "train")).to_pylist()
    assert sum(row["kept"] for row in rows) == 4000
    counts = [0] * 4000
    for row in rows:
        for place in range(row["from"], row["from"] + row["kept"]):
            counts[row["first_row"] + place] += 1
    assert counts == [1] * 4000
    assert {row["generation"] for row in rows} == {0, NUMBERS_PER_TERM}
    # What the first life trained after its record is counted as trained again.
    assert again > 0 and sum(row["to"] - row["from"] for row in rows) == 4000 + again
    story = read_explanation(second.request.store, second.request.job_id)
    assert story is not None and story.timeline == shown.timeline and story.shape_changes == shown.shape_changes
    timeline = [f"{entry.what}: {entry.cause}" for entry in story.timeline]
    stopped = timeline.index("stopped: enough")
    resumed = timeline[stopped + 1]
    covered = record.positions.of("training")
    assert covered is not None
    position = f"{second.service.state.plan.training.covered_rows(covered):,} of 4,000 samples"
    assert resumed.startswith(f"resumed from {uri} at {position}") and f"{again:,} rows are trained again" in resumed


@pytest.mark.parametrize("ends", [("died", "stopped"), ("stopped", "died"), ("died", "died")])
def test_without_a_ledger_the_rows_of_a_master_come_from_its_record(
    stage: Make, ends: tuple[str, str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(observers, "LEDGER_PAGE", 7)
    bases: list[str] = []
    for number, end in enumerate(ends):
        s = stage(f"journal-{number}")
        s.start()
        trained(s, 20 + 40 * number)
        bases.append(saved(s))
        trained(s, 40 + 40 * number)
        if end == "stopped":
            stop_job(s)
        s.stop()
    last = stage("last")
    last.start()
    live = [earlier_lines(last)]
    last.wait_for(Phase.SUCCEEDED)
    live.append(earlier_lines(last))
    last.stop()
    table = read_ledger(last.request.store, last.request.job_id)
    assert table is not None
    rows = table.filter(pc.equal(table.column("kind").cast("string"), "train")).to_pylist()
    counts = [0] * 4000
    for row in rows:
        for place in range(row["from"], row["from"] + row["kept"]):
            counts[row["first_row"] + place] += 1
    assert counts == [1] * 4000
    for number, end in enumerate(ends):
        outcomes = {row["outcome"] for row in rows if row["generation"] == number * NUMBERS_PER_TERM}
        named = f"before record {bases[number].rpartition('/')[2]}"
        assert outcomes == {named} if end == "died" else outcomes and named not in outcomes
    # The job's own master reports them while it runs, and after its end while it waits for its readers.
    left = [(row["generation"], row["shard"], row["from"], row["to"], row["outcome"], row["ended_at"]) for row in rows]
    assert live == [[line for line in left if line[0] < len(ends) * NUMBERS_PER_TERM]] * 2


def earlier_lines(s: Stage) -> list[tuple[Any, ...]]:
    """What the master of the job reports of those before it."""
    client, streams = RpcClient(s.address, "secret"), list[StreamNow]()
    with contextlib.closing(client):
        rows = ledger_table(_pages(client, streams), streams).to_pylist()
    return [
        (row["generation"], row["shard"], row["from"], row["to"], row["outcome"], row["ended_at"])
        for row in rows
        if row["generation"] < s.service.state.phases.term * NUMBERS_PER_TERM - NUMBERS_PER_TERM
    ]
