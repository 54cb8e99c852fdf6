from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import msgspec
import pytest

from elastrec.platform.clusters.pods import PodSpec
from elastrec.platform.data.entries import DataFile, DataManifest
from elastrec.platform.history.points import Costs
from elastrec.platform.master.service import observers
from elastrec.platform.master.service.history_sink import HistorySink, Report
from elastrec.platform.master.service.journal import Journal
from elastrec.platform.master.service.timed_work import TimedWork
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.transport.messages.job import Heartbeat, LeaseShards, Register
from elastrec.platform.transport.messages.ledger import Explanation, GetExplanation
from elastrec.platform.transport.messages.observer import (
    ChangeShape,
    FinishJob,
    GetStatus,
    PodMove,
    SaveNow,
    ShapeAnswer,
    ShapeOutcome,
    Status,
    StopJob,
    TakeOver,
)
from elastrec.platform.transport.messages.profile import ServerUse
from tests.manifests import write_manifest
from tests.platform.master.fakes import ScriptedPod, job
from tests.platform.master.stage import Stage
from tests.shapes import change
from tests.splits import progress_of

WORKER = "clicks-1-worker-1"
PATIENT = {"heartbeat_interval": 0.02, "heartbeat_timeout": 15, "lease": 20}
"""Of jobs that lose no pod: one whose thread gets no processor for a while is not lost, either."""
about_pods = pytest.mark.usefixtures("fleet")
not_about_pods = pytest.mark.usefixtures("some_fleet")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Callable[..., Stage]]:
    with contextlib.ExitStack() as stack:

        def make(training_job: TrainingJob | None = None, *, begin: bool = True, **sizes: Any) -> Stage:
            made = Stage(tmp_path, training_job or job(), **sizes)
            if begin:
                made.start()
            stack.callback(made.close)
            return made

        yield make


@about_pods
def test_a_job_goes_from_pods_to_success_and_trains_every_row_once(stage: Callable[..., Stage]):
    s = stage()
    s.wait_for(Phase.SUCCEEDED)
    assert s.rows_trained() == [1] * 1000
    metrics = s.metrics()
    assert metrics.shards_done == metrics.shards_total == 50
    assert metrics.evaluation_shards_done == 5
    assert metrics.samples_trained == metrics.samples_total == 1000
    assert metrics.evaluated and metrics.evaluation_samples == 100 and metrics.auc is not None
    assert metrics.checkpoint is not None
    s.wait(s.service.is_swept)
    assert not s.cluster.pods
    pods = s.metrics().pods
    assert [pod.name for pod in pods] == ["clicks-1-ps-0", "clicks-1-ps-1", "clicks-1-worker-0", "clicks-1-worker-1"]
    assert {pod.state for pod in pods} == {"Gone"} and sum(pod.samples for pod in pods) == 1100
    assert s.call(FinishJob()).accepted


@about_pods
def test_a_killed_worker_is_replaced_and_its_shards_are_trained_by_others(stage: Callable[..., Stage]):
    s = stage(rows=3_000, step_seconds=0.01)
    s.wait(lambda: s.service.state.training.done > 20)
    s.pods["clicks-1-worker-0"].kill()
    s.wait_for(Phase.SUCCEEDED)
    assert "clicks-1-worker-0-r1" in s.pods
    counts = s.rows_trained()
    # A row whose acknowledgement never arrived is trained again; the script remembers only acknowledged ones.
    assert min(counts) == 1 and s.service.state.training.samples >= 3_000
    assert s.service.state.phases.generation == 0


@about_pods
def test_a_silent_worker_is_treated_as_dead(stage: Callable[..., Stage]):
    s = stage(rows=4_000, step_seconds=0.01)
    s.wait(lambda: s.service.state.training.done > 5)
    s.pods["clicks-1-worker-1"].killed.set()
    s.wait(lambda: "clicks-1-worker-1-r1" in s.pods)
    s.wait_for(Phase.SUCCEEDED)
    assert "clicks-1-worker-1" in s.cluster.deleted


@about_pods
def test_a_pod_that_runs_but_never_registers_is_replaced(stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch):
    play = Stage._play

    def stillborn(self: Stage, spec: PodSpec) -> None:
        if spec.name not in ("clicks-1-worker-0", "clicks-1-ps-1"):
            play(self, spec)

    monkeypatch.setattr(Stage, "_play", stillborn)
    faults = {"heartbeat_interval": 0.02, "heartbeat_timeout": 1.5, "lease": 20, "start_timeout": 1}
    s = stage(job(faults=faults))
    s.wait_for(Phase.SUCCEEDED)
    assert {"clicks-1-worker-0-r1", "clicks-1-ps-1-r1"} <= s.pods.keys()
    assert {"clicks-1-worker-0", "clicks-1-ps-1"} <= set(s.cluster.deleted)
    assert s.rows_trained() == [1] * 1000
    causes = " ".join(entry.cause for entry in s.call(GetExplanation(), Explanation).timeline)
    assert "was not ready to work after" in causes and "spec.faults.start_timeout" in causes


@about_pods
def test_a_lost_server_rolls_back_to_the_last_record(stage: Callable[..., Stage]):
    s = stage(rows=2_000, step_seconds=0.005)
    s.wait(lambda: s.service.state.training.done > 10)
    assert s.call(SaveNow()).accepted
    s.wait(lambda: s.service.state.recovery.record is not None)
    record = s.service.state.recovery.record
    assert record is not None
    s.pods["clicks-1-ps-1"].kill()
    s.wait(lambda: s.service.state.phases.generation == 1)
    assert s.service.state.recovery.uri == record.uri
    s.wait_for(Phase.SUCCEEDED)
    assert s.service.state.membership.losses == {Role.PARAMETER_SERVER: 1}
    assert min(s.rows_trained()) == 1
    # After the rollback, exactly what the record does not hold was trained again.
    queue = msgspec.structs.replace(s.service.state.training)
    queue.restore(record.positions.of(queue.stream))
    assert sum(s.rows_trained(generation=1)) == 2_000 - queue.covered_rows()


@not_about_pods
def test_periodic_records_do_not_disturb_the_count(stage: Callable[..., Stage]):
    s = stage(job(checkpoint={"interval": 0.1, "keep": 1}, faults=PATIENT), rows=2_000, step_seconds=0.005)
    s.wait_for(Phase.SUCCEEDED, 60)
    assert s.service.state.saves.completed >= 2
    assert s.rows_trained() == [1] * 2_000
    records = list((s.folder / "store/clicks/records").glob("*/manifest.json"))
    assert 1 <= len(records) <= 2


@not_about_pods
def test_a_users_bug_fails_the_job_immediately_with_its_traceback(stage: Callable[..., Stage]):
    s = stage()
    s.fail_on = lambda pod, shard: pod.fail("division by zero", retryable=False)
    s.wait_for(Phase.FAILED)
    status = s.call(GetStatus(), Status)
    assert "division by zero" in status.failure and "Traceback" in status.failure


@not_about_pods
def test_a_poisoned_shard_fails_the_job_and_is_named_with_its_file(stage: Callable[..., Stage], tmp_path: Path):
    files = [
        DataFile(uri=f"file:///data/day=1/{name}", partition="day=1", rows=rows, bytes=1, row_group_rows=[rows])
        for name, rows in (("part-1.parquet", 10), ("part-0.parquet", 990))
    ]
    manifest = DataManifest(files=files, rows=1000, bytes=2, digest="0", schema_fingerprint="0", partitions=["day=1"])
    write_manifest(manifest, f"file://{tmp_path}/train.json")
    s = stage(job(faults={"heartbeat_interval": 0.02, "heartbeat_timeout": 1.5, "shard_attempts": 3}))

    def poisonous(pod: ScriptedPod, shard: Any) -> None:
        if shard.kind == "train" and shard.split.number == 7:
            pod.fail("bad row", retryable=True, shard=shard)

    s.fail_on = poisonous
    s.wait_for(Phase.FAILED)
    s.wait(lambda: "/day=1/part-0.parquet rows 130 to 149" in s.call(GetStatus(), Status).failure)
    assert "training shard 7 (rows 140 to 159 of epoch 0) failed 3 times" in s.service.state.failure
    assert "bad row" in s.service.state.failure


@about_pods
def test_a_restarted_master_loses_and_repeats_nothing(stage: Callable[..., Stage]):
    s = stage(job(checkpoint={"interval": 0.3}, faults=PATIENT), rows=2_000, step_seconds=0.005)
    for done in (5, 30, 60):
        s.wait(lambda done=done: s.service.state.training.done > done)
        s.stop()
        s.start()
        assert s.service.is_continued
    s.wait_for(Phase.SUCCEEDED)
    assert s.rows_trained() == [1] * 2_000
    assert s.service.state.membership.losses == {}
    ledger = [line for line in s.service.journal.ledger() if line.stream == "training"]
    assert len({line.number for line in ledger if line.outcome == "done"}) == 100


@about_pods
def test_a_stopped_job_sends_its_pods_home(stage: Callable[..., Stage]):
    s = stage(rows=100_000)
    s.wait_for(Phase.TRAINING)
    assert not s.call(FinishJob()).accepted
    assert s.call(TakeOver(owner="second")).accepted
    assert not s.call(StopJob(reason="clear", owner="first")).accepted
    assert s.call(StopJob(reason="enough", owner="second")).accepted
    s.wait(s.service.is_swept)
    assert s.service.state.phase is Phase.STOPPED and s.metrics().reason == "enough"
    assert not s.cluster.pods


@about_pods
def test_workers_join_and_leave_while_the_job_trains(stage: Callable[..., Stage]):
    s = stage(rows=20_000)
    s.wait_for(Phase.TRAINING)
    assert s.call(ChangeShape(change=change(workers=3)), ShapeAnswer).accepted
    s.wait(lambda: len(s.service.state.membership.workers()) == 3)
    s.wait(lambda: "clicks-1-worker-2" in s.service.state.training.held)
    assert s.call(ChangeShape(change=change(workers=1)), ShapeAnswer).accepted
    s.wait(lambda: len(s.service.state.membership.workers()) == 1)
    assert not s.call(ChangeShape(change=change(workers=0)), ShapeAnswer).accepted
    assert s.service.state.membership.losses == {}


@not_about_pods
def test_a_plan_for_a_job_that_has_just_ended_is_refused_and_changes_nothing(stage: Callable[..., Stage]):
    s = stage()
    s.wait_for(Phase.SUCCEEDED)
    wanted = s.service.state.wanted_shape
    asked = ChangeShape(change=change(parameter_servers=3), plan_id="a-round/clicks")
    for message in (asked, asked, msgspec.structs.replace(asked, dry_run=True)):
        answer = s.call(message, ShapeAnswer)
        assert not answer.accepted and not answer.request_id and answer.reason == "the job has succeeded"
    assert not s.service.state.shape_requests and s.service.state.wanted_shape == wanted


@not_about_pods
def test_a_request_for_servers_that_cannot_hold_the_rows_is_refused(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
):
    s = stage(rows=20_000)
    s.wait_for(Phase.TRAINING)
    uses = [
        ServerUse(pod=server.name, used_bytes=1, limit_bytes=1, table_bytes=server.memory_bytes * 2 // 3)
        for server in s.service.state.owners()
    ]
    monkeypatch.setattr(observers, "server_use", lambda state, monitor: uses)
    answer = s.call(ChangeShape(change=change(parameter_servers=1)), ShapeAnswer)
    assert answer.reason.startswith("parameter_servers: 1 is not allowed: all rows together have ")
    assert not answer.accepted and not s.service.state.shape_requests


@about_pods
@pytest.mark.parametrize(("servers", "mode"), [(1, "async"), (3, "bsp")])
def test_the_number_of_servers_changes_while_the_job_trains(stage: Callable[..., Stage], servers: int, mode: str):
    training = {"batch_size": 10, "batches_per_shard": 2, "consistency": {"mode": mode}}
    s = stage(job(training=training, faults=PATIENT), rows=4_000, step_seconds=0.01)
    s.wait_for(Phase.TRAINING)
    tried = s.call(ChangeShape(change=change(parameter_servers=servers), dry_run=True), ShapeAnswer)
    assert not (tried.reason or tried.accepted) and not s.service.state.shape_requests
    assert s.call(ChangeShape(change=change(parameter_servers=servers)), ShapeAnswer).accepted
    s.wait(lambda: len(s.service.state.ownership.servers) == servers and s.service.state.migration is None)
    assert len(s.service.state.membership.servers()) == servers
    assert s.service.state.phases.generation == 0 and s.service.state.phase is Phase.TRAINING
    s.wait_for(Phase.SUCCEEDED)
    assert s.rows_trained() == [1] * 4_000


@about_pods
def test_sizes_and_places_can_be_changed_while_the_job_trains(stage: Callable[..., Stage]):
    s = stage(job(faults=PATIENT), rows=6_000, step_seconds=0.01)
    s.wait_for(Phase.TRAINING)
    for asked, words in (
        (
            ChangeShape(change=change(worker_cores=0.0099)),
            "worker_cores: 0.0099 is not allowed; allowed: a finite number of at least 0.01",
        ),
        (ChangeShape(change=change(worker_memory_bytes=0)), "worker_memory_bytes: 0 is not allowed"),
        (ChangeShape(change=change(worker_memory_bytes=2**24 - 1)), "16777215 is not allowed; allowed: at least 16Mi"),
        (ChangeShape(moves=[PodMove(pod="x")]), "moves: 'x' is not allowed; allowed: the job's workers and servers"),
        (ChangeShape(moves=[PodMove(pod=WORKER)] * 2), f"moves: {WORKER} stands there twice"),
        (ChangeShape(timeout_seconds=0.0), "timeout_seconds: 0 is not allowed; allowed: above 0, at most 86400"),
    ):
        refused = s.call(asked, ShapeAnswer)
        assert not refused.accepted and words in refused.reason
    wanted = ChangeShape(
        change=change(parameter_server_memory_bytes=3 * 2**30, worker_cores=1.5),
        moves=[PodMove(pod=WORKER)],
        plan_id="plan-1",
    )
    tried = s.call(msgspec.structs.replace(wanted, dry_run=True), ShapeAnswer)
    assert not tried.accepted and not tried.reason and not s.service.state.shape_requests
    assert f"{WORKER}: moved: another worker starts, then this one leaves" in tried.prospects
    first, again = s.call(wanted, ShapeAnswer), s.call(wanted, ShapeAnswer)
    assert first.accepted and again == first
    other = s.call(msgspec.structs.replace(wanted, moves=[]), ShapeAnswer)
    assert not other.accepted and "give every plan an id of its own" in other.reason
    s.wait(lambda: s.call(GetStatus(), Status).shape_requests[0].outcome is ShapeOutcome.DONE)
    sizes = {pod.role: (pod.size.cores, pod.size.memory_bytes) for pod in s.cluster.pods.values()}
    assert sizes[Role.PARAMETER_SERVER][1] == 3 * 2**30 and sizes[Role.WORKER][0] >= 1.5
    s.wait(lambda: WORKER not in s.cluster.pods)
    assert len(s.service.state.membership.workers()) == 2
    s.wait_for(Phase.SUCCEEDED)
    assert s.rows_trained() == [1] * 6_000


@not_about_pods
def test_threads_end_with_the_service(stage: Callable[..., Stage]):
    s = stage()
    s.wait_for(Phase.SUCCEEDED)
    s.stop()
    assert not any(thread.name in ("timer", "journal") for thread in threading.enumerate())
    s.start()


@not_about_pods
def test_a_job_that_is_shorter_than_a_window_has_a_point_of_its_loss(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(TimedWork, "_close_window", lambda self: None)
    s = stage(begin=False)
    reports: list[Report] = []
    # No server stands behind it: what the master hands over is what counts here.
    s.history = create_autospec(HistorySink, instance=True, costs=Costs(), **{"close.return_value": []})
    s.history.put.side_effect = reports.append  # type: ignore[union-attr]
    s.start()
    s.wait_for(Phase.SUCCEEDED)
    s.wait(lambda: bool(reports))
    assert reports[-1].metrics.phase is Phase.SUCCEEDED and reports[-1].metrics.loss == 0.5


@not_about_pods
def test_an_error_in_timed_work_ends_the_master_instead_of_its_deadlines(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
):
    s = stage(begin=False)
    s.cluster.on_create = lambda spec: None
    ended = threading.Event()
    monkeypatch.setattr("os._exit", lambda code: ended.set())

    def broken(self: TimedWork) -> None:
        raise ZeroDivisionError("float division by zero")

    monkeypatch.setattr(TimedWork, "_close_window", broken)
    s.start()
    assert ended.wait(20)


@not_about_pods
def test_a_stop_of_the_process_does_not_count_as_waiting_time_of_pods(
    stage: Callable[..., Stage],
):
    s = stage(begin=False)
    s.cluster.on_create = lambda spec: None
    s.start()
    s.call(ChangeShape(change=change(workers=3)), ShapeAnswer)
    (request,) = s.service.state.shape_requests
    # The process goes on ten minutes later, as after SIGSTOP and SIGCONT.
    clock = s.service._clock
    s.service._clock = lambda: clock() + 600.0
    s.wait(lambda: request.progressed > 0.0)
    assert 600.0 <= request.progressed - request.asked < 700.0


@not_about_pods
def test_nothing_is_answered_or_done_before_its_event_is_on_disk(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
):
    may_commit, commit = threading.Event(), Journal._commit

    def held(journal: Journal, *batch: Any) -> None:
        assert may_commit.wait(60)
        commit(journal, *batch)

    monkeypatch.setattr(Journal, "_commit", held)
    s = stage(begin=False)
    s.cluster.on_create = lambda spec: None

    def is_held(*calls: Callable[[], Any]) -> None:
        """None of the calls returns until the journal has what they caused; then all do."""
        may_commit.clear()
        threads = [threading.Thread(target=call, daemon=True) for call in calls]
        try:
            for thread in threads:
                thread.start()
            threads[-1].join(0.5)
            assert [thread.is_alive() for thread in threads] == [True] * len(threads)
        finally:
            may_commit.set()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()

    def created() -> None:
        s.start()
        assert may_commit.is_set()

    is_held(created)
    s.wait(lambda: len(s.cluster.specs) == 4)
    servers, workers = ([f"clicks-1-{role}-{index}" for index in range(2)] for role in ("ps", "worker"))
    service = s.service

    def registration(pod: str, role: Role, incarnation: str = "1") -> Register:
        return Register(pod=pod, role=role, incarnation=incarnation, address=f"{pod}:1")

    def heartbeat(pod: str, **fields: Any) -> Heartbeat:
        return Heartbeat(pod=pod, incarnation="1", generation=0, reached_version=0, **fields)

    def request(pod: str, name: str) -> LeaseShards:
        return LeaseShards(pod=pod, incarnation="1", generation=0, request_id=name, count=1, kind="train")

    for pod in servers:
        order = service.register(registration(pod, Role.PARAMETER_SERVER)).directive.restore
        assert order is not None
        service.heartbeat(heartbeat(pod, restored_order_id=order.order_id))
    for pod in workers:
        service.register(registration(pod, Role.WORKER))
    assert service.state.phase is Phase.TRAINING
    (shard,) = service.lease(request(workers[0], "first")).shards
    progress = progress_of(shard, 10)
    is_held(
        lambda: service.register(registration(workers[1], Role.WORKER, "2")),
        lambda: service.lease(request(workers[0], "second")),
        lambda: service.heartbeat(heartbeat(workers[0], progress=[progress])),
        lambda: service.save_now(SaveNow()),
    )
    assert service.state.training.samples == 10
    is_held(lambda: service.stop_job(StopJob(reason="test")))
