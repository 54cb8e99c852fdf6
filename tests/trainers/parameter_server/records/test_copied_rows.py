"""Rows of a full record and their index are copied unchanged if the server stores them in the same layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elastrec.checkpoints import DamagedRecordError, SectionKind, open_record
from elastrec.platform.specs.job import TrainingJob
from elastrec.trainers.parameter_server.records import loader
from elastrec.trainers.parameter_server.records import share as records
from elastrec.trainers.parameter_server.records.share import restore
from elastrec.trainers.parameter_server.storage import slabs
from elastrec.trainers.parameter_server.storage.columns import row_columns
from elastrec.trainers.parameter_server.storage.copying import Copied
from elastrec.trainers.parameter_server.storage.kernels import index as index_kernels
from elastrec.trainers.parameter_server.storage.lines import Lines
from elastrec.trainers.parameter_server.warm_up import warm_kernels
from tests.trainers.parameter_server.filled import contents, job_with, push, save, servers_of
from tests.trainers.parameter_server.running import routing_of, training_job

BUCKETS = 64
ROUTING = routing_of(["nowhere"], buckets=BUCKETS)


def saved(folder: Path, job: TrainingJob, rows: int = 80_000) -> tuple[str, dict[Any, Any]]:
    servers = servers_of(job, 1)
    push(servers, range(rows), 1.0)
    return save(servers, job, str(folder / "record")), contents(servers)


def refused(*arguments: Any) -> None:
    raise AssertionError("rows were entered one by one")


def test_rows_and_index_are_copied_and_no_row_is_inserted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_with(BUCKETS)
    uri, held = saved(tmp_path, job)
    kinds = [entry.key.kind for part in open_record(uri).manifest.parts for entry in open_record(uri).index(part)]
    assert kinds.count(SectionKind.ROWS) and kinds.count(SectionKind.LINES)
    for name in ("load_columns", "load"):
        monkeypatch.setattr(loader, name, refused)
    monkeypatch.setattr(index_kernels, "rebuild", refused)
    for threads in (1, 4):
        (server,) = servers_of(job, 1)
        restore(server, uri, ROUTING, 1, threads=threads)
        assert contents([server]) == held


def test_a_restore_uses_the_kernels_that_were_compiled_when_the_server_started(tmp_path: Path) -> None:
    warm_kernels()
    job = job_with(BUCKETS)
    uri, held = saved(tmp_path, job)
    (server,) = servers_of(job, 1)
    restore(server, uri, ROUTING, 1)
    assert contents([server]) == held
    for kernel in (slabs._copy_cells, slabs._count_cells, slabs._copy_lines):
        assert len(kernel.signatures) == 1, "a record's arrays have other types than those at the start"


@pytest.mark.parametrize(
    "other",
    [
        {"tables": {"user": {"evict_after": 1e6}, "item": {"evict_after": 1e6}}},
        {"optimizers": {"rows": {"kind": "adam"}}},
        {"tables": {"user": {"admit_after": 3}}},
    ],
    ids=["seen_is_kept", "another_rule", "other_groups"],
)
def test_rows_with_another_cell_layout_are_inserted_by_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: dict[str, Any]
) -> None:
    uri, held = saved(tmp_path, job_with(BUCKETS), rows=300)
    monkeypatch.setattr(loader.SlabLoader, "load_cells", refused)
    job = training_job(**{"tables": {}, **other}, resources={"virtual_buckets": BUCKETS})
    (server,) = servers_of(job, 1)
    restore(server, uri, ROUTING, 1)
    found = contents([server])
    assert found.keys() == held.keys() and sum(store.rows for store in server.stores) == 600
    for key, row in found.items():
        # The columns of a row by name: its values stand last but one, before its version.
        assert row[-2] == held[key][-2]


def test_the_index_of_few_rows_is_made_from_their_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_with(BUCKETS)
    uri, held = saved(tmp_path, job, rows=20)
    (part,) = open_record(uri).manifest.parts
    assert SectionKind.LINES not in [entry.key.kind for entry in open_record(uri).index(part)]
    monkeypatch.setattr(loader, "load_columns", refused)
    (server,) = servers_of(job, 1)
    restore(server, uri, ROUTING, 1)
    assert contents([server]) == held


def test_lines_of_slabs_of_another_size_are_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_with(BUCKETS)
    with monkeypatch.context() as patched:
        patched.setattr(records, "place_words", lambda store: {"per_slab": 7, "shift": 3})
        uri, held = saved(tmp_path, job)
    (server,) = servers_of(job, 1)
    restore(server, uri, ROUTING, 1)
    assert contents([server]) == held


@pytest.mark.parametrize("path", ["copied_cells", "columns"])
def test_an_index_that_is_made_has_nothing_of_the_rows_before_the_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    job = job_with(BUCKETS)
    with monkeypatch.context() as patched:
        patched.setattr(records, "place_words", lambda store: {"per_slab": 7, "shift": 3})
        uri, held = saved(tmp_path, job)
    if path == "columns":
        monkeypatch.setattr(loader, "is_kept", lambda *_: False)
    (server,) = servers_of(job, 1)
    push([server], range(100_000, 180_000), 1.0)
    restore(server, uri, ROUTING, 1)
    assert contents([server]) == held
    # Found by the index: nothing is inserted.
    push([server], range(80_000), 1.0)
    assert contents([server]).keys() == held.keys()
    for store in server.stores:
        lines, slots = store.rows_memory.indexed.hash_index, 0
        for start, count in lines.runs.tolist():
            slots += sum(index_kernels.entries_of(lines.longs, line) for line in range(start, start + count))
        assert slots == store.rows


def with_cells(change: Callable[[np.ndarray], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written of rows is changed before."""
    write = records._write_cells

    def changed(writer: Any, group: int, store: Any, copied: Copied) -> None:
        cells = copied.cells.copy()
        change(cells)
        write(writer, group, store, dataclasses.replace(copied, cells=cells))

    monkeypatch.setattr(records, "_write_cells", changed)


def test_a_cell_in_a_bucket_to_which_it_does_not_belong_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_another_id(cells: np.ndarray) -> None:
        cells[7, 0] += 1

    with monkeypatch.context() as patched:
        with_cells(of_another_id, patched)
        uri, _ = saved(tmp_path, job_with(BUCKETS))
    (share,) = open_record(uri).shares()
    rows = next(share.read((SectionKind.ROWS,)))
    table, row_id = share.tables[rows.columns["tables"][7]], rows.columns["ids"][7]
    (server,) = servers_of(job_with(BUCKETS), 1)
    with pytest.raises(DamagedRecordError, match=f"id {row_id} of table {table} is among the rows of bucket .*older"):
        restore(server, uri, ROUTING, 1)


def test_an_index_that_does_not_fit_its_rows_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = records._write_lines

    def of_no_rows(writer: Any, group: int, store: Any, made: Iterator[Lines]) -> None:
        write(writer, group, store, (dataclasses.replace(each, lines=0 * each.lines) for each in made))

    with monkeypatch.context() as patched:
        patched.setattr(records, "_write_lines", of_no_rows)
        uri, _ = saved(tmp_path, job_with(BUCKETS))
    (server,) = servers_of(job_with(BUCKETS), 1)
    with pytest.raises(
        DamagedRecordError, match=r"the index of bucket .* is not that of its rows; use an older record"
    ):
        restore(server, uri, ROUTING, 1)


def test_changed_rows_are_written_as_columns(tmp_path: Path) -> None:
    job = training_job(tables={}, resources={"virtual_buckets": BUCKETS}, checkpoint={"deltas": 3})
    (server,) = servers_of(job, 1)
    push([server], range(3000), 1.0)
    base = records.save_part(server, str(tmp_path / "base"), cut="one")
    push([server], range(100), 1.0)
    delta = records.save_part(server, str(tmp_path / "delta"), cut="two", base="one")
    assert base.tables[0].rows == delta.tables[0].rows == 3000
    cells, _ = np.empty((1, server.stores[0].layout.width), np.uint32), None
    assert delta.size_bytes < base.size_bytes // 4 and "values" in row_columns(server.stores[0].layout, cells)
