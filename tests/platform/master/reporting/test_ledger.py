from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from elastrec.platform.jobs.watching.past import _pages
from elastrec.platform.master.reporting.ledger import SCHEMA, ledger_table, read_ledger, running_attempts, streams_now
from elastrec.platform.master.service import observers
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.specs.row_ranges import RowRanges, shard_seed
from elastrec.platform.specs.splits import Begun, StreamPositions
from elastrec.platform.transport import RpcClient
from elastrec.platform.transport.messages.ledger import Attempt, StreamNow
from tests.platform.master.fakes import job
from tests.platform.master.service.test_service import Stage, stage  # noqa: F401

pytestmark = pytest.mark.usefixtures("some_fleet")


def queue(cursor: int, begun: list[tuple[int, int]] | None = None, *, shuffle: bool = False) -> StreamNow:
    positions = StreamPositions(cursor, [Begun(number, offset, 1) for number, offset in begun or []])
    splits = RowRanges(rows=95, split_rows=10, shuffle=shuffle, seed=3)
    return StreamNow(stream="training", kind="train", splits=splits, positions=positions)


def line(shard: int, begin: int, end: int, outcome: str = "done", generation: int = 0, attempt: int = 1) -> Attempt:
    return Attempt("training", generation, shard, attempt, f"w-{attempt}", begin, end, outcome, 1.0, 2.0, 1e9)


def columns(table: pa.Table, *names: str) -> list[tuple[int, ...]]:
    return list(zip(*(table.column(name).to_pylist() for name in names), strict=True))


def test_an_empty_ledger_has_its_columns():
    assert ledger_table([], [queue(0)]).schema == SCHEMA


def test_a_shard_is_given_in_rows_of_the_manifest():
    table = ledger_table([[line(0, 0, 10), line(9, 0, 5)]], [queue(10)])
    assert columns(table, "first_row", "rows") == [(0, 10), (90, 5)]
    assert table.column("shuffle_seed").null_count == 2


def test_a_shard_that_another_worker_continues_repeats_no_row():
    table = ledger_table([[line(2, 0, 4, "lost"), line(2, 4, 10, attempt=2)]], [queue(3)])
    assert columns(table, "repeated", "kept") == [(0, 4), (0, 6)]


def test_rows_rolled_back_are_repeated_and_count_once():
    lines = [line(1, 0, 10), line(2, 0, 7, "rolled back"), line(2, 3, 10, generation=1, attempt=2)]
    table = ledger_table([lines[:1], lines[1:]], [queue(3)])
    assert columns(table, "repeated", "kept") == [(0, 10), (0, 3), (4, 7)]


def test_after_a_rollback_to_the_beginning_no_shard_is_done():
    table = ledger_table([[line(0, 0, 10), line(1, 0, 10)]], [queue(1, [(0, 4)])])
    assert columns(table, "kept") == [(4,), (0,)]


def test_a_shuffled_queue_counts_its_shards_in_the_order_handed_out():
    table = ledger_table([[line(number, 0, 10 if number < 9 else 5) for number in range(10)]], [queue(4, shuffle=True)])
    assert sorted(kept for (kept,) in columns(table, "kept"))[:6] == [0] * 6
    assert table.column("shuffle_seed").to_pylist()[2] == shard_seed(3, 0, 2)


def test_the_ledger_of_a_running_job_is_read_page_by_page(stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch):  # noqa: F811
    monkeypatch.setattr(observers, "LEDGER_PAGE", 7)
    s = stage()
    s.wait(lambda: s.service.state.training.done > 10)
    client = RpcClient(s.address, "secret")
    queues: list[StreamNow] = []
    table = ledger_table(_pages(client, queues), queues)
    client.close()
    assert table.num_rows > 10
    places = columns(table.filter(pa.compute.equal(table.column("kind").cast("string"), "train")), "kept", "from", "to")
    assert all(kept == end - begin for kept, begin, end in places)


def test_the_ledger_outlives_the_job_and_its_kept_rows_are_the_days(stage: Callable[..., Stage], tmp_path: Path):  # noqa: F811
    s = stage(job(checkpoint={"interval": 0.2}), rows=3000)
    s.wait(lambda: s.service.state.saves.completed >= 1 and s.service.state.training.done > 40)
    s.pods["clicks-1-ps-0"].kill()
    s.wait(lambda: s.service.state.training.done > 60)
    s.pods["clicks-1-worker-0"].kill()
    s.wait_for(Phase.SUCCEEDED)
    s.wait(lambda: read_ledger(str(tmp_path / "store"), "clicks-1") is not None)
    # What is left behind was journalled before; at the moment of success the last lines are on their way.
    live = ledger_table([s.service.journal.ledger(), running_attempts(s.service.state)], streams_now(s.service.state))
    table = read_ledger(str(tmp_path / "store"), "clicks-1")
    assert table is not None and table.schema == SCHEMA
    assert table.drop_columns(["ended_at"]).equals(live.drop_columns(["ended_at"]))
    train = table.filter(pa.compute.equal(table.column("kind").cast("string"), "train"))
    state = s.service.state
    assert sum(kept for (kept,) in columns(train, "kept")) == 3000
    trained = sum(end - begin for begin, end in columns(train, "from", "to"))
    assert trained == state.training.samples
    assert sum(again for (again,) in columns(train, "repeated")) == trained - 3000
    assert read_ledger(str(tmp_path / "store"), "clicks-2") is None
