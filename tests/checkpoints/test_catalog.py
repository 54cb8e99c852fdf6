"""Which record is the newest, and which ones pruning deletes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from botocore.paginate import Paginator

from elastrec.checkpoints import predictions_folder
from elastrec.checkpoints.answers import answer
from elastrec.checkpoints.catalog import discard, latest_record, list_records, newest_records, prune, prune_final
from elastrec.checkpoints.commit import commit_record, new_record_uri
from elastrec.checkpoints.parts import PartWriter
from elastrec.checkpoints.record import open_record
from elastrec.checkpoints.stores.s3_store import UPLOAD_PART_BYTES, S3Store
from elastrec.checkpoints.stores.store import Store, open_store
from elastrec.checkpoints.terms import SupersededError, conclude, take_term
from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.specs.job import TrainingJob
from tests.checkpoints.verifying import verify
from tests.checkpoints.writing import TABLES, VIRTUAL_BUCKETS, save, write_part

MakeJob = Callable[..., TrainingJob]


@pytest.mark.parametrize(
    "damage", ["no manifest", "flipped manifest", "half manifest", "part gone", "part cut", "index"]
)
def test_a_torn_newest_record_is_skipped_for_the_last_complete_one(
    tmp_path: Path, make_job: MakeJob, damage: str
) -> None:
    store = open_store(tmp_path)
    good = save(store, make_job(), step=1)
    torn = open_store(save(store, make_job(), step=2))
    manifest_path, part = torn.local_path("manifest.json"), open_record(torn.uri).manifest.parts[0]
    part_path = torn.local_path(part.file)
    assert manifest_path is not None and part_path is not None
    if damage == "no manifest":
        manifest_path.unlink()
    elif damage == "flipped manifest":
        manifest_path.write_bytes(manifest_path.read_bytes().replace(b'"step":2', b'"step":3'))
    elif damage == "half manifest":
        manifest_path.write_bytes(manifest_path.read_bytes()[:100])
    elif damage == "part gone":
        part_path.unlink()
    elif damage == "part cut":
        part_path.write_bytes(part_path.read_bytes()[:-10])
    else:
        data = bytearray(part_path.read_bytes())
        data[part.index_start + 3] ^= 1
        part_path.write_bytes(data)
    found = latest_record(store, "clicks")
    assert found is not None and found.uri == good


def test_an_unreachable_store_does_not_lead_to_an_older_record(
    s3_uri: str, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(s3_uri)
    save(store, make_job())

    def unreachable(self: S3Store, key: str) -> tuple[bytes, str] | None:
        raise CheckpointError("could not read: timed out")

    monkeypatch.setattr(S3Store, "get_if_exists", unreachable)
    with pytest.raises(CheckpointError, match="timed out"):
        latest_record(store, "clicks")


def test_the_newest_record_is_that_of_the_latest_data_then_the_latest_made(store: Store, make_job: MakeJob) -> None:
    job = make_job()
    monday = save(store, job, job_id="mon", step=900, kind="final", created=1.0, interval_end="2026-01-06")
    tuesday = save(store, job, job_id="tue", step=300, kind="final", created=2.0, interval_end="2026-01-07")
    again = save(store, job, job_id="mon2", step=900, kind="final", created=3.0, interval_end="2026-01-06")
    wednesday = save(store, job, job_id="wed", step=10, created=4.0, interval_end="2026-01-08")
    assert [uri for uri, _ in list_records(store, "clicks")] == [wednesday, tuesday, again, monday]

    def newest(**wanted: str) -> str | None:
        found = latest_record(store, "clicks", **wanted)  # type: ignore[arg-type]
        return found and found.uri

    assert newest(kind="final") == tuesday
    assert newest(job_id="mon") == monday
    assert newest(kind="final", interval_end_at_most="2026-01-06") == again
    assert newest(kind="final", job_id="wed") is None
    assert latest_record(store, "other-job") is None


def test_moments_of_other_time_zones_are_compared_as_moments(tmp_path: Path, make_job: MakeJob) -> None:
    store = open_store(tmp_path)
    later = save(store, make_job(), job_id="a", created=1.0, interval_end="2026-01-06T23:00:00-05:00")
    save(store, make_job(), job_id="b", created=2.0, interval_end="2026-01-07T01:00:00.5+02:00")
    assert next(uri for uri, _ in list_records(store, "clicks")) == later
    found = latest_record(store, "clicks", interval_end_at_most="2026-01-07T06:00:00+02:00")
    assert found is not None and found.uri == later
    with pytest.raises(CheckpointError, match="yesterday"):
        save(store, make_job(), interval_end="yesterday")


def test_pruning_keeps_the_newest_periodic_every_final_and_other_jobs_records(store: Store, make_job: MakeJob) -> None:
    job = make_job()
    periodic = [save(store, job, step=step) for step in (1, 2, 3, 4)]
    final = save(store, job, step=5, kind="final")
    other = save(store, job, job_id="clicks-2", step=1)
    torn, running = (new_record_uri(store, "clicks", "clicks-1", 6) for _ in range(2))
    others_torn = new_record_uri(store, "clicks", "clicks-2", 6)
    for uri in (torn, running, others_torn):
        write_part(uri, 0, 1)
    deleted = prune(store, "clicks", "clicks-1", keep=2, in_progress=lambda: [running])
    assert sorted(deleted) == sorted([*periodic[:2], torn])
    assert {uri for uri, _ in list_records(store, "clicks")} == {*periodic[2:], final, other}
    assert open_store(running).keys() and open_store(others_torn).keys() and not open_store(torn).keys()
    assert prune(store, "clicks", "clicks-1", keep=2, in_progress=lambda: [running]) == []


def test_of_final_records_those_of_the_latest_data_and_those_made_last_are_kept(
    store: Store, make_job: MakeJob
) -> None:
    days = [
        save(store, make_job(), job_id=f"day-{day}", step=day, kind="final", interval_end=f"2026-01-0{day}")
        for day in range(1, 7)
    ]
    # An old day that was trained again, and a periodic record of another job.
    again = save(
        store, make_job(), job_id="again", step=9, kind="final", interval_end="2026-01-01", created=1_000_000.0
    )
    running = save(store, make_job(), job_id="running", step=3)
    assert sorted(prune_final(store, "clicks", 2, kept=[days[1]])) == sorted([days[0], days[2], days[3]])
    assert {uri for uri, _ in list_records(store, "clicks")} == {days[1], *days[4:], again, running}
    assert prune_final(store, "clicks", 2) == [days[1]]


def test_a_final_record_whose_model_is_not_published_yet_is_kept_for_a_day(store: Store, make_job: MakeJob) -> None:
    now, days = time.time(), []
    for day in range(1, 6):
        job_id = f"day-{day}"
        take_term(store, "clicks", job_id, holder="h", address="127.0.0.1:1", base=lambda: "")
        created = now - (90_000 if day == 1 else 60)
        days.append(
            save(
                store, make_job(), job_id=job_id, step=day, kind="final", interval_end=f"2026-01-0{day}",
                created=created, term=1,
            )
        )  # fmt: skip
    conclude(store, "clicks", "day-2")
    # The evaluation of the third day has not ended.
    assert sorted(prune_final(store, "clicks", 2)) == days[:2]
    assert {uri for uri, _ in list_records(store, "clicks")} == set(days[2:])
    conclude(store, "clicks", "day-3")
    assert prune_final(store, "clicks", 2) == [days[2]]


def test_with_the_last_final_record_of_a_job_its_predictions_are_deleted(store: Store, make_job: MakeJob) -> None:
    def with_predictions() -> list[str]:
        return [f"day-{day}" for day in range(1, 6) if store.keys(f"clicks/predictions/day-{day}")]

    # The second day was trained again.
    records = {
        (day, step): save(
            store, make_job(), job_id=f"day-{day}", step=step, kind="final", interval_end=f"2026-01-0{day}"
        )
        for day, step in ((1, 1), (2, 2), (2, 3), (3, 3), (4, 4))
    }
    for day in range(1, 5):
        for shard in range(2):
            open_store(predictions_folder(store.uri, "clicks", f"day-{day}")).put(f"{shard:08d}.parquet", b"rows")
    kept = [records[2, 3]]
    assert sorted(prune_final(store, "clicks", 2, kept=kept)) == sorted([records[1, 1], records[2, 2]])
    assert with_predictions() == ["day-2", "day-3", "day-4"]

    def killed() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prune_final(store, "clicks", 2, check=killed)
    assert prune_final(store, "clicks", 2) == kept
    assert with_predictions() == ["day-3", "day-4"]


def test_unfinished_uploads_end_with_their_record_unless_they_are_in_progress(s3_uri: str, make_job: MakeJob) -> None:
    store = open_store(s3_uri)
    complete = save(store, make_job(), step=1)
    killed, running, others = (
        new_record_uri(store, "clicks", job_id, 6) for job_id in ("clicks-1", "clicks-1", "clicks-2")
    )
    for uri in (complete, killed, running, others):
        # A process that is killed neither closes nor aborts.
        open_store(uri).open_write("parts/ps-0.bin").write(bytes(UPLOAD_PART_BYTES))

    def left() -> set[str]:
        return {store.child_uri(key.removesuffix("/parts/ps-0.bin")) for key in store.unfinished("clicks/records")}

    assert left() == {complete, killed, running, others}
    assert prune(store, "clicks", "clicks-1", keep=2, in_progress=lambda: [running]) == [killed]
    assert left() == {running, others}
    assert verify(open_record(complete)) > 0
    assert discard(running) and left() == {others}


@pytest.mark.parametrize("key", ["parts/ps-0.bin", "manifest.json"])
def test_what_a_killed_writer_has_left_in_a_record_that_was_completed_just_now_is_deleted(
    store: Store, make_job: MakeJob, key: str
) -> None:
    complete = save(store, make_job(), step=1)
    # A process that is killed neither closes nor aborts.
    open_store(complete).open_write(key).write(bytes(UPLOAD_PART_BYTES))
    assert prune(store, "clicks", "clicks-1", keep=2, in_progress=lambda: [complete]) == []
    assert not store.unfinished()
    if folder := store.local_path("clicks"):
        assert not [file for file in folder.rglob("*.tmp") if file.is_file()]
    assert verify(open_record(complete)) > 0


def test_pruning_continues_without_the_right_to_list_uploads(
    s3_uri: str, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(s3_uri)
    uris = [save(store, make_job(), step=step) for step in (1, 2)]

    def refuse(self: object, **_: object) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied"}}, "ListMultipartUploads")

    monkeypatch.setattr("botocore.paginate.Paginator.paginate", refusing(refuse))
    assert prune(store, "clicks", "clicks-1", keep=1) == uris[:1]


def refusing(refuse: Callable[..., None]) -> Callable[..., Any]:
    """Pages as they are, but for those of unfinished uploads."""
    original = Paginator.paginate

    def paginate(self: Paginator, **arguments: Any) -> Any:
        if self._method.__name__ == "list_multipart_uploads":
            refuse(self)
        return original(self, **arguments)

    return paginate


def test_pruning_spares_a_record_that_is_begun_while_the_store_is_slow(store: Store, make_job: MakeJob) -> None:
    save(store, make_job(), step=1)
    torn, running = sorted(new_record_uri(store, "clicks", "clicks-1", step) for step in (2, 3))
    for uri in (torn, running):
        write_part(uri, 0, 1)
    asked: list[int] = []

    def in_progress() -> list[str]:
        asked.append(1)
        return [running] if len(asked) > 1 else []

    assert prune(store, "clicks", "clicks-1", keep=1, in_progress=in_progress) == [torn]
    assert open_store(running).keys()


def test_records_known_to_be_damaged_are_pruned_and_do_not_count(store: Store, make_job: MakeJob) -> None:
    uris = [save(store, make_job(), step=step) for step in (1, 2, 3, 4)]
    prune(store, "clicks", "clicks-1", 2, in_progress=lambda: [uris[3]], damaged=[uris[2]])
    assert [uri for uri, _ in list_records(store, "clicks")] == [uris[3], uris[1]]


def test_a_periodic_record_without_all_its_bytes_is_pruned_and_does_not_count(store: Store, make_job: MakeJob) -> None:
    uris = [save(store, make_job(), step=step) for step in (1, 2, 3)]
    final = save(store, make_job(), step=4, kind="final")
    for uri, data in ((uris[1], b"short"), (uris[2], None), (final, b"short")):
        torn = open_store(uri)
        part = open_record(uri).manifest.parts[0].file
        torn.delete(part) if data is None else torn.put(part, data)
    assert prune(store, "clicks", "clicks-1", 1, in_progress=lambda: [uris[2]]) == [uris[1]]
    assert prune(store, "clicks", "clicks-1", 1) == [uris[2]]
    assert [uri for uri, _ in list_records(store, "clicks")] == [uris[0]]
    assert open_store(final).exists("manifest.json")


def test_records_are_tried_from_the_newest_to_the_oldest(store: Store, make_job: MakeJob) -> None:
    uris = [save(store, make_job(), step=step, kind="final") for step in (1, 2, 3)]
    save(store, make_job(), step=4)
    open_store(uris[1]).delete("manifest.json")
    assert [record.uri for record in newest_records(store, "clicks", "final")] == [uris[2], uris[0]]


def test_a_clock_that_is_set_back_makes_no_record_old(store: Store, make_job: MakeJob) -> None:
    job = make_job()
    early = save(store, job, step=1, created=10_000.0)
    late = save(store, job, step=2, created=6_400.0)
    last = save(store, job, step=2, created=6_300.0)
    assert [uri for uri, _ in list_records(store, "clicks")] == [late, last, early]
    # Of equal steps the clock would choose; the one that was just written stays in any case.
    assert prune(store, "clicks", "clicks-1", keep=1, in_progress=lambda: [last]) == [early]


def test_a_failed_save_is_discarded_and_a_complete_record_is_not(store: Store, make_job: MakeJob) -> None:
    complete = save(store, make_job(), step=1)
    torn = new_record_uri(store, "clicks", "clicks-1", 2)
    write_part(torn, 0, 1)
    assert discard(torn) and not open_store(torn).keys()
    assert not discard(complete)
    assert [uri for uri, _ in list_records(store, "clicks")] == [complete]
    assert discard(torn)


def test_pruning_leaves_a_record_that_it_cannot_read(tmp_path: Path, make_job: MakeJob) -> None:
    store = open_store(tmp_path)
    uri = save(store, make_job(), step=1, kind="final")
    open_store(uri).put("manifest.json", b"garbage")
    assert prune(store, "clicks", "clicks-1", keep=0) == []


def test_records_of_a_job_are_ordered_by_term_then_step_and_a_term_begins_with_its_base(
    store: Store, make_job: MakeJob
) -> None:
    def take(holder: str, base: str = "") -> None:
        take_term(store, "clicks", "clicks-1", holder=holder, address="host:1", base=lambda: base)

    def newest() -> list[str]:
        return [uri for uri, _ in list_records(store, "clicks", "clicks-1")]

    take("a")
    base = save(store, make_job(), step=100, term=1)
    after = save(store, make_job(), step=200, term=1)
    assert newest() == [after, base]
    # The second master goes on from the first record; the first one commits once more, too late.
    take("b", base)
    late = save(store, make_job(), step=300, term=1)
    assert newest() == [base, late, after]
    own = save(store, make_job(), step=150, term=2)
    assert newest() == [own, base, late, after]


def test_a_failed_check_writes_no_record_and_prunes_nothing(store: Store, make_job: MakeJob) -> None:
    def refuse() -> None:
        raise SupersededError("another master has taken term 2")

    old, new = save(store, make_job(), step=100), save(store, make_job(), step=200)
    with pytest.raises(SupersededError):
        prune(store, "clicks", "clicks-1", keep=1, check=refuse)
    assert [uri for uri, _ in list_records(store, "clicks")] == [new, old]
    uri = new_record_uri(store, "clicks", "clicks-1", 300)
    parts = [write_part(uri, server, 2) for server in range(2)]
    with pytest.raises(SupersededError):
        commit_record(
            uri, parts, b"{}", job=make_job(), job_id="clicks-1", kind="periodic", step=300, generation=2, check=refuse
        )
    assert [found for found, _ in list_records(store, "clicks")] == [new, old]


def save_empty(store: Store, job: TrainingJob, step: int, interval_end: str, base: str = "") -> str:
    """Commits a periodic record without rows, of changes since its base if it has one; returns its URI."""
    uri = new_record_uri(store, "clicks", "clicks-1", step)
    groups = [answer(TABLES, range(VIRTUAL_BUCKETS), first=2 if base else 0, last=2 if base else 1)]
    with PartWriter(uri, "ps-0", groups=groups) as writer:
        part = writer.finish()
    commit_record(
        uri, [part], b"{}", job=job, job_id="clicks-1", kind="periodic", step=step, generation=0,
        interval=("", interval_end), base=base,
    )  # fmt: skip
    return uri


def test_the_base_of_a_record_that_was_just_written_stays_although_another_run_had_later_data(
    store: Store, make_job: MakeJob
) -> None:
    job = make_job()
    later = save_empty(store, job, 100, "2026-03-03T00:00Z")
    full = save_empty(store, job, 10, "2026-03-02T00:00Z")
    delta = save_empty(store, job, 20, "2026-03-02T00:00Z", base=full)
    assert prune(store, "clicks", "clicks-1", keep=1, in_progress=lambda: [delta]) == []
    assert [uri for uri, _ in list_records(store, "clicks")] == [later, delta, full]
