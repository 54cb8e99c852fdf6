"""A job that starts from a periodic record of another job: at its positions if the files are equal, else only with its
weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.compute as pc
import pytest

from elastrec.checkpoints import Record, list_terms, open_record
from elastrec.platform.data.entries import DataManifest
from elastrec.platform.jobs.starting.preparation import _begin, _find_start, _Rows
from elastrec.platform.jobs.types import Interval
from elastrec.platform.master.machine import events
from elastrec.platform.master.machine.plan import JobPlan
from elastrec.platform.master.machine.rollback import recover
from elastrec.platform.master.machine.state import JobState
from elastrec.platform.master.pods.launch import LaunchRequest, decode_launch, encode_launch
from elastrec.platform.master.reporting.ledger import read_ledger
from elastrec.platform.master.service.resumption import Numbering, StartPositions, check_numbering, start_positions
from elastrec.platform.specs.errors import SpecError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.specs.splits import Begun, Positions, StreamPositions
from elastrec.platform.transport.messages.ledger import Explanation, GetExplanation
from tests.platform.master.fakes import job
from tests.platform.master.masters import saved, trained
from tests.platform.master.stage import Stage

pytestmark = pytest.mark.usefixtures("some_fleet")
ROWS, DIGEST = 4000, "digest of the files"


def another(**training: Any) -> TrainingJob:
    faults = {"heartbeat_interval": 0.02, "heartbeat_timeout": 30, "lease": 60}
    return job(training={"batch_size": 10, "batches_per_shard": 2} | training, faults=faults)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Callable[[str], Stage]]:
    """Masters with a journal and pods of their own, over one store."""
    made: list[Stage] = []

    def make(job_id: str) -> Stage:
        folder = tmp_path / f"{job_id}-{len(made)}"
        folder.mkdir()
        of = Stage(tmp_path, another(), folder, rows=ROWS)
        of.request = msgspec.structs.replace(of.request, job_id=job_id, training_digest=DIGEST)
        made.append(of)
        return of

    yield make
    for of in made:
        for pod in of.pods.values():
            pod.killed.set()
        if hasattr(of, "service"):
            of.close()


@pytest.fixture
def record(stage: Callable[[str], Stage]) -> Record:
    """A periodic record of job `earlier`, which trains no further."""
    s = stage("earlier")
    s.start()
    trained(s, 20)
    uri = saved(s)
    s.stop()
    return open_record(uri)


def positions(record: Record) -> Positions:
    return Positions.decode(record.positions())


def begun_at(s: Stage, record: Record) -> Stage:
    """The same job, launched to begin at the positions of a record."""
    begin = start_positions(record, s.request.training_job, DIGEST, ROWS)
    s.request = decode_launch(
        encode_launch(msgspec.structs.replace(s.request, start_record=record.uri, start_positions=begin.positions))
    )
    return s


def test_on_the_same_files_a_job_continues_at_the_positions_and_trains_every_row_once(
    stage: Callable[[str], Stage], record: Record
) -> None:
    s = begun_at(stage("later"), record)
    s.start()
    covered = s.service.state.samples_before
    assert 400 <= covered < ROWS
    timeline = [entry.what for entry in s.call(GetExplanation(), Explanation).timeline]
    assert any(line.startswith(f"began from record {record.uri} at {covered:,} samples") for line in timeline), timeline
    assert s.metrics().started_from == f"{record.uri} at {covered:,} of {ROWS:,} samples"
    s.wait_for(Phase.SUCCEEDED)
    assert (s.metrics().samples_trained, s.metrics().samples_of_start) == (ROWS, covered)
    assert sum(end - start for *_, start, end in s.trained) == ROWS - covered
    s.stop()
    assert counted(s) == [1] * ROWS
    # Of another job is all that was trained before; this job began in its first term.
    (term,) = list_terms(s.request.store, s.job_name, "later")
    assert (term.term, term.base) == (1, "") and Positions.decode(term.positions) == positions(record)


def test_a_master_that_lost_its_journal_before_the_first_record_begins_at_the_same_positions(
    stage: Callable[[str], Stage], record: Record
) -> None:
    first = begun_at(stage("later"), record)
    first.start()
    trained(first, first.service.state.training.done + 5)
    first.stop()
    second = begun_at(stage("later"), record)
    second.cluster, second.pods, second.trained = first.cluster, first.pods, first.trained
    second.start()
    second.wait_for(Phase.SUCCEEDED)
    second.stop()
    assert counted(second) == [1] * ROWS


def counted(s: Stage) -> list[int]:
    """How often the ledger counts each row."""
    table = read_ledger(s.request.store, s.request.job_id)
    assert table is not None
    rows = table.filter(pc.equal(table.column("kind").cast("string"), "train")).to_pylist()
    counts = [0] * ROWS
    for row in rows:
        for place in range(row["from"], row["from"] + row["kept"]):
            counts[row["first_row"] + place] += 1
    name = s.request.start_record.rpartition("/")[2]
    assert {row["outcome"] for row in rows if row["generation"] < 0} == {f"before record {name}"}
    return counts


def test_a_rollback_before_the_first_record_returns_to_the_start_positions() -> None:
    begin = Positions({"training": StreamPositions(5, [Begun(2, 4, 1)])})
    request = msgspec.structs.replace(
        launch_request(),
        start_record="file:///s/r/000-1-2",
        start_positions=begin.encode().decode(),
    )
    state = JobState.new(JobPlan.of(request))
    state.handle(events.TermBegun(time=0.0, term=1, address="m:1"))
    state.handle(events.Begun(time=0.0))
    before = state.training.covered_rows()
    state.phases.phase = Phase.TRAINING
    state.training.lease("worker", "r", 3, 0.0)
    recover(state, "a server was lost", [])
    assert state.training.positions().cursor == 5 and state.training.covered_rows() == before == state.samples_before
    assert state.recovery.uri == "file:///s/r/000-1-2"
    assert all(restore.order.with_marks for restore in state.recovery.servers.values())
    state.recovery.damaged.append("file:///s/r/000-1-2")
    assert state.recovery.start_record is None


def launch_request() -> LaunchRequest:
    return LaunchRequest.of(
        another(),
        job_id="clicks-1",
        training_manifest="m",
        training_rows=200,
        store="file:///s",
        training_digest=DIGEST,
    )


def rows_of(digest: str) -> _Rows:
    manifest = DataManifest(files=[], rows=ROWS, bytes=0, digest=digest, schema_fingerprint="", partitions=[])
    return _Rows(manifest, manifest, Interval("", "", ""))


def with_start(record: Record, **sections: Any) -> TrainingJob:
    content = another().model_dump(mode="json", by_alias=True)
    content["spec"]["continual"] = {"start_from": record.uri, **sections.pop("continual", {})}
    content["spec"]["training"] |= sections
    return TrainingJob.model_validate(content)


def begin(job: TrainingJob, digest: str) -> StartPositions:
    """Where the job is prepared to begin."""
    start = _find_start(job, rows_of(digest))
    assert start.records == [job.spec.continual.start_from]
    return _begin(job, rows_of(digest), start.first)


def test_the_positions_that_a_job_begins_with_are_decided_before_anything_starts(record: Record) -> None:
    found = begin(with_start(record), DIGEST)
    assert found.positions == record.positions().decode()
    assert found.note.startswith(f"begins at the positions of {record.uri}: ")
    assert found.note.endswith(" of 4,000 samples are trained")


@pytest.mark.parametrize(
    ("digest", "continual", "reason"),
    [
        ("of other files", {}, "its positions are of other files"),
        (DIGEST, {"resume": "never"}, "spec.continual.resume is never"),
    ],
)
def test_otherwise_only_the_weights_are_used_with_a_reason(
    record: Record, digest: str, continual: dict[str, str], reason: str
) -> None:
    found = begin(with_start(record, continual=continual), digest)
    assert found.positions == ""
    assert found.note == f"begins with the weights of {record.uri} at the first row: {reason}"


def test_the_same_files_in_other_shards_are_refused_by_name_with_the_way_on(record: Record) -> None:
    with pytest.raises(SpecError) as caught:
        begin(with_start(record, seed=9, batches_per_shard=4), DIGEST)
    assert "spec.training.seed: 9 is not allowed" in str(caught.value)
    assert "batch_size times batches_per_shard: 40 is not allowed" in str(caught.value)
    assert "put it back; or train all rows on its weights: spec.continual.resume: never" in str(caught.value)


def test_rows_whose_sessions_are_kept_together_have_another_order_and_are_refused(record: Record) -> None:
    """An offset within a shard would leave out rows and train others twice."""
    content = with_start(record).model_dump(mode="json", by_alias=True)
    content["spec"]["data"]["session"] = "visit"
    for groups, kept_together in (([["user"]], "visit"), ([], "")):
        content["spec"]["deduplication"] = {"groups": groups}
        job = TrainingJob.model_validate(content)
        assert Numbering.of_job(job, DIGEST, ROWS).kept_together == kept_together
        if not groups:
            assert begin(job, DIGEST).positions
            continue
        with pytest.raises(SpecError, match=r"spec.deduplication \(.*: 'visit' is not allowed; allowed: '', as when"):
            begin(job, DIGEST)
    # A record of an earlier version may have kept them together or not, so no message can ask for the earlier state.
    stored = msgspec.json.decode(record.manifest.attributes["numbering"])
    del stored["kept_together"]
    record.manifest.attributes["numbering"] = msgspec.json.encode(stored).decode()
    content["spec"]["deduplication"] = {"groups": [["user"]]}
    numbering = Numbering.of_job(TrainingJob.model_validate(content), DIGEST, ROWS)
    with pytest.raises(
        SpecError, match=r": 'visit' is not allowed; allowed: unknown: file.*; train from the beg"
    ) as old:
        check_numbering(record, numbering)
    assert "put it back" not in str(old.value)
    content["spec"]["training"]["shuffle"] = False
    assert Numbering.of_job(TrainingJob.model_validate(content), DIGEST, ROWS).kept_together == ""


def test_positions_that_are_none_are_refused_before_a_master_begins() -> None:
    request = msgspec.structs.replace(launch_request(), start_record="file:///s/r/1", start_positions="{")
    with pytest.raises(SpecError, match=r"start_positions: '\{' "):
        JobPlan.of(request)
    with pytest.raises(SpecError, match=r"start_positions: .* with a start_record that nothing stands in for"):
        decode_launch(encode_launch(msgspec.structs.replace(launch_request(), start_positions='{"cursor":1}')))
