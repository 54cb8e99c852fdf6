"""What the master does to the world, and what it reports of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from elastrec.checkpoints import PartWriter, open_record, open_store
from elastrec.platform.master import events
from elastrec.platform.master.effects import CommitRecord
from elastrec.platform.master.executor import Executor
from elastrec.platform.master.launch import LaunchRequest
from elastrec.platform.master.plan import JobPlan
from elastrec.platform.master.shards import Positions
from elastrec.platform.master.state import JobState
from elastrec.platform.transport.job_messages import SavedPart
from tests.platform.master.fakes import FakeCluster, job, launch


def commit_order(request: LaunchRequest) -> CommitRecord:
    """A save whose parts are written."""
    state = JobState.new(JobPlan.of(request))
    save = state.phases.begin_save(step=40, is_final=False, deadline=1.0)
    open_store(request.store).create()
    writer = PartWriter(save.uri, "clicks-1-ps-0", buckets=range(64), dense_range=(0, 4), generation=0)
    writer.write_dense("w", (4,), 0, {"value": np.zeros(4, np.float32)})
    part = SavedPart(order_id=save.order_id, manifest_json=writer.finish().to_json())
    return CommitRecord(
        order_id=save.order_id, uri=save.uri, is_final=False, step=40, generation=0, parts=[part],
        positions=Positions(2, []),
    )  # fmt: skip


@pytest.mark.parametrize(("is_own", "kind"), [(True, events.RecordCommitted), (False, events.RecordFailed)])
def test_a_master_killed_between_manifest_and_journal_takes_its_own_record_and_no_other(
    tmp_path: Path, is_own: bool, kind: type[events.Event]
) -> None:
    request = launch(str(tmp_path / "store"), job())
    order = commit_order(request)
    told: list[events.Event] = []

    def executor(job_id: str) -> Executor:
        of = LaunchRequest.of(
            request.training_job, job_id=job_id, training_manifest=request.training_manifest, training_rows=1000,
            evaluation_manifest=request.evaluation_manifest, evaluation_rows=100, store=request.store,
        )  # fmt: skip
        return Executor(of, FakeCluster(), lambda make: told.append(make(1.0)), "secret", None, lambda pod: None)

    executor("clicks-1")._commit(order)
    assert told == [events.RecordCommitted(time=1.0, order_id=order.order_id)]
    # The event never reached the journal: the next master gives the same order.
    executor("clicks-1" if is_own else "other-1")._commit(order)
    assert type(told[1]) is kind and len(told) == 2
    assert open_record(order.uri).manifest.job_id == "clicks-1"
