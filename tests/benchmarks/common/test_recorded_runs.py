"""Records of real runs: pods over time, step times by running pods, and the duration of changes of servers."""

from __future__ import annotations

import msgspec
import pandas as pd
import pyarrow as pa
import pytest

from benchmarks.common.jobs import Ended
from benchmarks.common.recorded_runs import BATCH, CASES, Case, RecordedRun, recorded
from elastrec.platform.scaling.amounts import GIBIBYTE
from elastrec.platform.specs.metrics import Phase, Role, TrainingMetrics
from elastrec.platform.specs.shape import DONE, MigrationSeen, Places, PodSize, Shape
from elastrec.platform.transport.messages.ledger import Explanation
from elastrec.platform.transport.messages.profile import Measured, Profile

CASE = Case("gets a server", 2, 1, 0.4, 0.2, epochs=1, change_at=0.25, servers_to=2)
BEGIN, MOMENT, PAUSE = 5.0, 20.0, 3.0
"""On the job's clock: its first shard, the hand-over of its rows, and how long that took."""
_SHARD_STEPS = 4


def shape(servers: int) -> Shape:
    worker, server = PodSize(0.4, 2 * GIBIBYTE), PodSize(0.2, GIBIBYTE)
    return Shape({Role.WORKER: Places(2, worker), Role.PARAMETER_SERVER: Places(servers, server)})


def ledger() -> pa.Table:
    """Two workers; a step takes 0.5 s, and 0.25 s with two servers; the hand-over falls into a shard of each."""
    rows = []
    for pod in ("w0", "w1"):
        at, begin = BEGIN, 0
        while at < 40.0:
            seconds = _SHARD_STEPS * (0.5 if at < MOMENT else 0.25) + (PAUSE if at == MOMENT - 1.0 else 0.0)
            rows.append({"pod": pod, "began_seconds": at, "ended_seconds": at + seconds, "from": begin})
            at, begin = at + seconds, begin + _SHARD_STEPS * BATCH
    table = pd.DataFrame(rows).assign(kind="train", outcome="done", repeated=0)
    return pa.Table.from_pandas(table.assign(to=table["from"] + _SHARD_STEPS * BATCH))


def ended(*, outcome: str = DONE, profile: bool = True) -> Ended:
    moved = MigrationSeen(
        servers_before=1, servers_after=2, unix_seconds=0.0, begun_seconds=15.0, copying_seconds=18.0,
        handing_over_seconds=MOMENT, ended_seconds=MOMENT + PAUSE, outcome=outcome,
    )  # fmt: skip
    measured = [
        Measured(configuration=shape(1), steps=100, worker_seconds=50.0, pull_seconds=15.0, push_seconds=5.0),
        Measured(configuration=shape(2), steps=100, worker_seconds=99.0),
    ]
    known = Profile(
        job_json=b"", phase=Phase.SUCCEEDED, configuration=shape(2), is_settled=True, measured=measured,
        remaining_samples=0, dense_bytes=1234,
    )  # fmt: skip
    story = Explanation(
        job="j", phase=Phase.SUCCEEDED, wall_seconds=40.0, parts={}, goodput=1.0, timeline=[], migrations=[moved]
    )
    metrics = TrainingMetrics(job="j", phase=Phase.SUCCEEDED)
    return Ended(metrics=metrics, ledger=ledger(), explanation=story, profile=known if profile else None)


@pytest.fixture
def run() -> RecordedRun:
    return recorded(CASE, ended())


def test_pods_over_time_have_the_moment_when_rows_were_handed_over(run: RecordedRun) -> None:
    assert run.pods_up[-1] == (MOMENT - BEGIN, 2, 2)
    assert run.pods_up[-2] == (0.0, 2, 1)
    assert (run.started_seconds, run.pause_seconds, run.dense_bytes) == (BEGIN, PAUSE, 1234.0)
    # A quarter of the 48 shards was done, and the order given, a second before.
    assert run.delay_seconds == pytest.approx(1.0)


def test_a_hand_over_is_not_part_of_a_step(run: RecordedRun) -> None:
    steps = {(each.workers, each.servers): each.step_seconds for each in run.steps}
    assert steps[2, 1] == pytest.approx(0.5)
    assert steps[2, 2] == pytest.approx(0.25, rel=0.1)


def test_the_part_that_workers_compute_is_that_of_the_masters_profile(run: RecordedRun) -> None:
    parts = {(each.workers, each.servers): each.compute_seconds for each in run.steps}
    assert parts[2, 1] == pytest.approx(0.3)
    # Never more than the step itself, whatever the profile averaged over.
    assert parts[2, 2] == next(each.step_seconds for each in run.steps if each.servers == 2)


def test_servers_that_did_not_change_and_a_lost_profile_are_refused() -> None:
    with pytest.raises(RuntimeError, match="0 changes of servers are done"):
        recorded(CASE, ended(outcome="no room"))
    with pytest.raises(RuntimeError, match="before its profile was read"):
        recorded(CASE, ended(profile=False))


def test_cases_change_servers_both_ways_and_every_kind_has_another_one() -> None:
    servers = [(each.servers, each.servers_to) for each in CASES if each.servers_to]
    assert {after > before for before, after in servers} == {True, False}
    assert len(servers) >= 2
    assert len({each.name for each in CASES}) == len(CASES)
    assert msgspec.json.decode(msgspec.json.encode(recorded(CASE, ended())), type=RecordedRun).name == CASE.name
