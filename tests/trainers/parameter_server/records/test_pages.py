"""A restarted server creates the pages of its rows before a restore is ordered, within the memory of its pod."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from elastrec.checkpoints import open_store
from elastrec.checkpoints.flash import MOST_NOTE_BYTES, MemoryStore
from elastrec.trainers.memory import resident_bytes
from elastrec.trainers.parameter_server.records.memory import RecordMemory
from elastrec.trainers.parameter_server.records.pages import PageMaker, note_of
from elastrec.trainers.parameter_server.records.share import restore, save_part
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from elastrec.trainers.parameter_server.storage.memory import PAGE_BYTES, Region, RegionSize
from tests.trainers.parameter_server.calls import SGD, pull, push, server_of
from tests.trainers.parameter_server.records.test_memory import IDS, Saves
from tests.trainers.parameter_server.running import job_spec, routing_of

ROOM = 2**40


def made(memory: RecordMemory, room: int = ROOM) -> PageMaker:
    pages = PageMaker(memory, lambda: room)
    pages.start()
    pages.wait()
    return pages


def started_again() -> ParameterServer:
    return ParameterServer("ps-0", job_spec(optimizers=SGD), capacity_rows=1000)


@pytest.mark.services
def test_a_restored_server_has_its_rows_in_the_pages_that_were_made_for_it(
    tmp_path: Path, memory: RecordMemory
) -> None:
    saves = Saves(tmp_path / "store", memory)
    saves.commit("save-1")
    held = sum(size.used_bytes for store in saves.server.stores for size in store.region_sizes)
    expected = np.array(pull(saves.server, "a", IDS)[1][0])
    pages, server = made(memory), started_again()
    assert pages.made_bytes == held > 0
    regions = [region for region in pages._regions if region._used_bytes]
    restore(server, saves.uri("save-1"), routing_of(["here:1"]), 1, memory=memory.opened(), pages=pages.take())
    taken = [region for store in server.stores for region in store.regions]
    assert regions and all(any(region is other for other in taken) for region in regions)
    np.testing.assert_array_equal(pull(server, "a", IDS)[1][0], expected)
    for each in (server, saves.server):
        push(each, "a", 5, list(range(200)), 1.0)
    np.testing.assert_array_equal(
        pull(server, "a", list(range(200)))[1][0], pull(saves.server, "a", list(range(200)))[1][0]
    )


@pytest.mark.services
def test_a_model_from_nothing_keeps_none_of_them(tmp_path: Path, memory: RecordMemory) -> None:
    Saves(tmp_path / "store", memory).commit("save-1")
    pages, server = made(memory).take(), started_again()
    restore(server, "", routing_of(["here:1"]), 1, pages=pages)
    assert not pages._regions


@pytest.mark.services
def test_no_pages_are_made_beyond_the_memory_of_the_pod(tmp_path: Path, memory: RecordMemory) -> None:
    Saves(tmp_path / "store", memory).commit("save-1")
    with capture_logs() as logs:
        pages = made(memory, room=256 * 2**20)
    assert pages.made_bytes == 0 and not pages.take()._regions
    assert [entry["event"] for entry in logs].count("pages_not_made") == 1


def test_without_a_part_in_memory_no_pages_are_made(memory: RecordMemory) -> None:
    assert made(memory).made_bytes == 0
    assert made(RecordMemory(None)).made_bytes == 0
    assert memory._memory is not None, "it is open before it is needed"


def test_pages_that_are_made_are_there_and_zero_for_their_user() -> None:
    region, size = Region(64 * 2**20, huge=False), 16 * 2**20
    before = resident_bytes()
    region.make_pages(size // 2)
    region.make_pages(size)
    assert resident_bytes() - before > 0.9 * size
    region.pass_on()
    assert region.left_bytes == size and not region.words[: size // 4].any()
    region.words[:] = 0
    region.trim(PAGE_BYTES)
    assert region.left_bytes == 0


def test_written_lines_are_cleared_and_new_ones_are_not_written_again() -> None:
    region = Region(4 * PAGE_BYTES, huge=False)
    region.make_pages(2 * PAGE_BYTES)
    region.pass_on()
    region.words[:] = 7
    region.clear(0, PAGE_BYTES)
    assert region.words[0] == 7, "nobody had written it"
    region.use(4 * PAGE_BYTES)
    region.pass_on()
    region.clear(0, PAGE_BYTES)
    assert not region.words[: PAGE_BYTES // 4].any() and region.words[PAGE_BYTES // 4] == 7


def test_a_server_with_too_many_regions_for_a_note_is_saved_without_one(
    tmp_path: Path, memory: RecordMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = server_of()
    sizes = [RegionSize(2**40, True, 2**30)] * MOST_NOTE_BYTES
    monkeypatch.setattr(type(server.stores[0]), "region_sizes", property(lambda store: sizes))
    assert note_of(server.stores) == b""
    opened = memory.opened()
    assert opened is not None
    uri = f"{tmp_path}/store/record"
    store = MemoryStore(open_store(uri), opened, note=note_of(server.stores))
    save_part(server, store, cut="save-1")
    assert [part.note for part in opened.parts()] == [b""] and made(memory).made_bytes == 0
