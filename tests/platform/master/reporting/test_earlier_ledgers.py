"""The ledger of a job that several masters have directed."""

from __future__ import annotations

import contextlib
from typing import Any

import pyarrow.compute as pc
import pytest

from elastrec.platform.jobs.watching.past import _pages
from elastrec.platform.master.machine.phases import NUMBERS_PER_TERM
from elastrec.platform.master.reporting.explanation import read_explanation
from elastrec.platform.master.reporting.ledger import ledger_table, read_ledger
from elastrec.platform.master.service import observers
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.transport import RpcClient
from elastrec.platform.transport.messages.ledger import Explanation, GetExplanation, StreamNow
from tests.platform.master.masters import Make, counted, saved, stage_fixture, stop_job, trained  # noqa: F401
from tests.platform.master.stage import Stage

pytestmark = pytest.mark.usefixtures("some_fleet")


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
