"""The state machine of pods: no sequence of events grants more than the capacity or restarts an ended pod."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrec.platform.clusters.local.agent import pod_life as life
from elastrec.platform.clusters.local.agent.pod_checks import check_fits_at_all
from elastrec.platform.clusters.local.agent.pod_life import PodRecord, Stage
from elastrec.platform.clusters.local.processes.pod_runner import ProcessExit
from elastrec.platform.clusters.pods import EndReason, PodPhase, PodSize, PodSpec, RestartPolicy
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.metrics import Role

_TOTAL = PodSize(4.0, 1000)


def _spec(name="a", cores=1.0, memory=100, policy=RestartPolicy.NEVER, **fields):
    size = PodSize(cores, memory)
    return PodSpec(name=name, job="j", role=Role.WORKER, command=("x",), size=size, restart_policy=policy, **fields)


def _live(policy=RestartPolicy.NEVER, started=0.0) -> PodRecord:
    record = life.new_record(_spec(policy=policy), uid="u", node="n", port=0, now=0.0)
    return life.started(life.starting(record), started)


def _exit(code=1, at=1.0, **fields):
    return ProcessExit(exit_code=code, finished_unix_seconds=at, **fields)


@pytest.mark.parametrize(
    ("end", "reason", "word"),
    [
        (_exit(0), EndReason.COMPLETED, "Completed"),
        (_exit(1), EndReason.ERROR, "Error"),
        (_exit(2), EndReason.BAD_INPUT, "Error"),
        (_exit(139), EndReason.ERROR, "Error"),
        (_exit(137), EndReason.KILLED, "Error"),
        (_exit(143), EndReason.KILLED, "Error"),
        (_exit(128), EndReason.NOT_STARTED, "Error"),
        (_exit(137, oom_killed=True), EndReason.OUT_OF_MEMORY, "OOMKilled"),
        (_exit(137, lost=True), EndReason.KILLED, "Error"),
        (_exit(137, lost=True, rebooted=True), EndReason.NODE_LOST, "NodeLost"),
    ],
)
def test_an_end_has_a_reason_and_for_people_kubernetes_word(end, reason, word):
    record = life.exited(_live(), end, now=1.0)
    status = life.status_of(record)
    assert (status.end, status.reason) == (reason, word)
    assert record.phase is (PodPhase.SUCCEEDED if end.exit_code == 0 else PodPhase.FAILED)


def test_pauses_double_up_to_ten_seconds_and_reset_after_a_healthy_minute():
    record, pauses = _live(RestartPolicy.ON_FAILURE), []
    for _ in range(9):
        record = life.exited(record, _exit(137, at=1.0), now=1.0)
        pauses.append(record.next_start_unix_seconds - 1.0)
        record = life.started(life.starting(record), 0.5)
    assert pauses == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0])
    healthy = life.exited(record, _exit(at=60.5), now=60.5)
    assert healthy.next_start_unix_seconds - 60.5 == pytest.approx(0.2)


def test_a_process_with_a_permanent_error_is_not_restarted():
    record = life.exited(_live(RestartPolicy.ON_FAILURE), _exit(2), now=1.0)
    assert (record.stage, record.phase, record.exit_code) == (Stage.ENDED, PodPhase.FAILED, 2)
    assert record.message == "not restarted, it would fail again"


def _crashed(times: int, end: ProcessExit) -> PodRecord:
    record = _live(RestartPolicy.ON_FAILURE)
    for _ in range(times - 1):
        record = life.started(life.starting(life.exited(record, end, now=1.0)), 0.5)
    return life.exited(record, end, now=1.0)


@pytest.mark.parametrize("end", [_exit(1), _exit(139), _exit(137, oom_killed=True)])
def test_a_pod_that_crashes_repeatedly_fails_permanently(end):
    assert _crashed(life.CRASH_LIMIT - 1, end).stage is Stage.BACK_OFF
    record = _crashed(life.CRASH_LIMIT, end)
    assert (record.stage, record.phase) == (Stage.ENDED, PodPhase.FAILED)
    assert f"crashed {life.CRASH_LIMIT} times in a row" in record.message and record.restarts == life.CRASH_LIMIT - 1


def test_a_healthy_minute_resets_the_count_of_crashes():
    record = _crashed(life.CRASH_LIMIT - 1, _exit(1))
    record = life.exited(life.started(life.starting(record), 1.0), _exit(1, ran_seconds=60.0), now=61.0)
    assert (record.stage, record.crashes, record.failures) == (Stage.BACK_OFF, 1, 1)


@pytest.mark.parametrize(
    "end", [_exit(137), _exit(143), _exit(137, lost=True), _exit(137, lost=True, rebooted=True), _exit(128)]
)
def test_ends_caused_by_the_node_or_a_user_do_not_count_as_crashes(end):
    assert _crashed(3 * life.CRASH_LIMIT, end).stage is Stage.BACK_OFF


@given(st.integers(1, 10**6))
def test_a_pause_never_leaves_its_bounds(failures):
    assert 0.2 <= life.back_off_seconds(failures) <= 10.0


def test_a_pod_that_is_being_deleted_is_not_restarted():
    record = life.deleting(_live(RestartPolicy.ON_FAILURE), grace_seconds=5.0, now=0.0)
    assert life.exited(record, _exit(), now=1.0).stage is Stage.ENDED


def test_the_most_impatient_deletion_counts():
    record = life.deleting(life.deleting(life.deleting(_live(), 9.0, 0.0), 3.0, 0.0), 7.0, 0.0)
    assert record.kill_unix_seconds == 3.0


def test_the_record_keeps_no_secret():
    spec = _spec(files={"plan": "private"}, secrets={"token": "s3cret"})
    record = life.new_record(spec, uid="u", node="n", port=0, now=0.0)
    assert record.spec.files == {"plan": ""} and record.spec.secrets == {"token": ""}
    assert msgspec.json.decode(msgspec.json.encode(record), type=PodRecord) == record


def test_a_shortage_names_what_is_missing():
    assert life.shortage(PodSize(1.0, 10), PodSize(1.0, 10)) == ""
    assert life.shortage(PodSize(2.0, 10), PodSize(0.5, 10)) == "insufficient cpu: asked 2.0, free 0.5"
    assert "insufficient memory: asked 11, free 10" in life.shortage(PodSize(2.0, 11), PodSize(0.5, 10))
    with pytest.raises(ClusterError, match=r"the cluster has 4.0"):
        check_fits_at_all("a", PodSize(5.0, 1), _TOTAL)


def test_tenths_of_cores_add_up_without_a_rest():
    records = [
        life.starting(life.new_record(_spec(str(n), cores=0.1), uid=str(n), node="n", port=0, now=0.0))
        for n in range(39)
    ]
    assert life.shortage(PodSize(0.1, 1), life.free_of(PodSize(4.0, 100_000), records)) == ""


_EVENTS = st.tuples(
    st.sampled_from(["create", "admit", "exit-0", "exit-1", "retry", "delete"]),
    st.integers(0, 5),
    st.sampled_from([0.1, 0.3, 1.0, 2.5, 4.0]),
    st.integers(1, 1000),
)


@given(st.lists(_EVENTS, max_size=60))
def test_no_sequence_of_events_grants_more_than_there_is(events):
    pods: dict[int, PodRecord] = {}
    for now, (kind, number, cores, memory) in enumerate(events):
        pod = pods.get(number)
        if kind == "create" and pod is None:
            spec = _spec(str(number), cores, memory, RestartPolicy.ON_FAILURE if number % 2 else RestartPolicy.NEVER)
            pods[number] = life.new_record(spec, uid=str(number), node="n", port=0, now=now)
        elif kind == "admit":
            for key, waiting in pods.items():
                fits = not life.shortage(waiting.size, life.free_of(_TOTAL, pods.values()))
                if waiting.stage is Stage.WAITING and fits:
                    pods[key] = life.started(life.starting(waiting), now)
        elif pod is not None and kind.startswith("exit") and pod.stage is Stage.LIVE:
            pods[number] = life.exited(pod, _exit(int(kind[-1]), at=now), now)
        elif pod is not None and kind == "retry" and pod.stage is Stage.BACK_OFF:
            pods[number] = life.started(life.starting(pod), now)
        elif kind == "delete":
            pods.pop(number, None)
        held = [record.size for record in pods.values() if record.holds_resources]
        assert sum(size.cores for size in held) <= _TOTAL.cores + 1e-5
        assert sum(size.memory_bytes for size in held) <= _TOTAL.memory_bytes
        for record in pods.values():
            assert (record.stage is Stage.ENDED) == record.phase.is_final
            assert record.attempt == 0 or record.attempt == record.restarts + 1


@given(
    grace=st.floats(0, 100),
    later=st.floats(0, 100),
    failures=st.integers(1, 20),
    jump=st.sampled_from([-3600, 0, 3600]),
)
def test_a_clock_that_jumps_prolongs_neither_a_grace_nor_a_pause(
    grace: float, later: float, failures: int, jump: float
) -> None:
    record = _live(RestartPolicy.ON_FAILURE)
    for _ in range(failures):
        record = life.exited(record, _exit(at=1e9 + 1.0), now=1e9)
    pause = life.back_off_seconds(failures)
    assert life.start_pause_seconds(record, 1e9) == pytest.approx(pause, abs=1e-6)
    assert 0 <= life.start_pause_seconds(record, 1e9 + jump + later) <= pause
    record = life.deleting(record, grace, 1e9)
    assert life.kill_pause_seconds(record, 1e9) == pytest.approx(grace, abs=1e-6)
    assert 0 <= life.kill_pause_seconds(record, 1e9 + jump + later) <= grace
    again = life.deleting(record, 2 * grace, 1e9 + jump + later)
    assert 0 <= life.kill_pause_seconds(again, 1e9 + jump + later) <= grace


def test_the_duration_of_an_attempt_does_not_depend_on_the_wall_clock() -> None:
    failed = life.exited(_live(RestartPolicy.ON_FAILURE), _exit(at=1.0, ran_seconds=0.5), now=1.0)
    assert life.exited(failed, _exit(at=3600.0, ran_seconds=0.5), now=3600.0).failures == 2
    assert life.exited(failed, _exit(at=-3600.0, ran_seconds=90.0), now=-3600.0).failures == 1


def test_a_record_of_older_code_is_one_of_a_pod_that_has_started():
    old = msgspec.to_builtins(_live())
    del old["is_starting"], old["spec"]["startup_cores"], old["spec"]["secrets"]
    assert msgspec.convert(old, PodRecord) == _live()
    assert not _live().is_starting


def test_every_attempt_has_startup_cores_until_it_reports_that_it_is_ready():
    spec = _spec(policy=RestartPolicy.ON_FAILURE, startup_cores=2.0)
    waiting = life.new_record(spec, uid="u", node="n", port=0, now=0.0)
    first = life.started(life.starting(waiting), 0.0)
    assert life.resized(first, first.size).is_starting
    settled = life.settled(first)
    again = life.starting(life.exited(settled, _exit(), now=1.0))
    assert [record.startup_cores for record in (waiting, first, settled, again)] == [0.0, 2.0, 0.0, 2.0]
    assert {record.size for record in (first, settled, again)} == {spec.size}


def test_cores_at_start_below_the_granted_ones_are_none():
    record = life.new_record(_spec(cores=2.0, startup_cores=2.0), uid="u", node="n", port=0, now=0.0)
    assert not life.starting(record).is_starting


@given(passed=st.floats(-10_000, 10_000))
def test_startup_cores_are_kept_for_at_most_a_minute_even_if_the_clock_is_set(passed: float) -> None:
    record = life.started(_live(), 1000.0)
    assert 0.0 <= life.settle_pause_seconds(record, 1000.0 + passed) <= 60.0
    assert life.settle_pause_seconds(record, 1015.0) == 45.0
    assert life.settle_pause_seconds(msgspec.structs.replace(record, started_unix_seconds=None), 0.0) == 60.0
