"""Measurements of the job's speed that a restarted master still has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastrec.platform.master.measuring.observations import Observations
from elastrec.platform.master.measuring.saved_measurements import EVERY_SECONDS, MEASUREMENTS_FILE, SavedMeasurements
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.transport.messages.job import TableUsage
from elastrec.platform.transport.messages.profile import GetProfile, Measured, Profile
from tests.disks import small_disk
from tests.platform.master.fakes import job
from tests.platform.master.histories import history, running
from tests.platform.master.stage import Stage
from tests.shapes import shape

pytestmark = pytest.mark.usefixtures("some_fleet")

TWO = shape(2, 2, 1.0, 1.0, 1000, 1000)


def observed(configurations: int = 2) -> Observations:
    seen = Observations(0.0)
    seen.profile.recall(
        Measured(configuration=shape(1 + n, 2, 1.0, 1.0, 1000, 1000), steps=10, worker_seconds=2.0 + n)
        for n in range(configurations)
    )
    for samples in (1000, 2000):
        seen.growth.add(samples, 3, [TableUsage(table="users", rows=samples // 10, bytes=8 * samples)])
    seen.starts._asked["w"] = (Role.WORKER, 0.0, True)
    seen.starts.works("w", 7.0)
    seen.starts.reported("w", 3.0)
    return seen


def recalled(folder: Path) -> Observations:
    seen = Observations(0.0)
    seen.recall(SavedMeasurements(folder).recall())
    return seen


def test_speeds_growth_and_starts_outlive_the_process(tmp_path: Path) -> None:
    seen = observed()
    SavedMeasurements(tmp_path).keep(seen.remembered(), 0.0)
    found = recalled(tmp_path)
    assert found.profile.measured() == seen.profile.measured()
    assert found.growth.tables() == seen.growth.tables()
    assert found.starts.medians() == seen.starts.medians() != {}


def test_points_of_a_table_continue_only_in_the_same_generation(tmp_path: Path) -> None:
    SavedMeasurements(tmp_path).keep(observed().remembered(), 0.0)
    usage = [TableUsage(table="users", rows=300, bytes=24_000)]
    same, other = recalled(tmp_path), recalled(tmp_path)
    same.growth.add(3000, 3, usage)
    other.growth.add(3000, 4, usage)
    assert [len(each.growth.tables()[0].samples) for each in (same, other)] == [3, 1]


def test_its_size_depends_on_configurations_not_on_steps(tmp_path: Path) -> None:
    saved, sizes = SavedMeasurements(tmp_path), []
    for steps in (10, 10**9):
        seen = observed(20)
        seen.profile.recall(
            Measured(configuration=each.configuration, steps=steps, worker_seconds=0.125 * steps)
            for each in seen.profile.measured()
        )
        saved.keep(seen.remembered(), 0.0)
        sizes.append((tmp_path / MEASUREMENTS_FILE).stat().st_size)
    assert sizes[1] < 1.3 * sizes[0] < 10_000


@pytest.mark.parametrize("damage", [b"", b"{", b"not json", b'{"format":1,"checksum":3,"body":{}}'])
def test_a_damaged_file_loses_only_the_measurements(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / MEASUREMENTS_FILE).write_bytes(damage)
    assert recalled(tmp_path).profile.measured() == []


def test_a_changed_figure_is_detected(tmp_path: Path) -> None:
    SavedMeasurements(tmp_path).keep(observed().remembered(), 0.0)
    file = tmp_path / MEASUREMENTS_FILE
    page = json.loads(file.read_bytes())
    page["body"]["measured"][0]["steps"] = 99
    file.write_text(json.dumps(page, separators=(",", ":")))
    assert recalled(tmp_path).profile.measured() == []


def test_a_full_disk_keeps_the_earlier_measurements(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 2 * 2**20) as disk:
        saved = SavedMeasurements(disk.folder)
        saved.keep(observed(2).remembered(), 0.0)
        disk.fill()
        saved.keep(observed(200).remembered(), 1.0)
        assert len(recalled(disk.folder).profile.measured()) == 2
        assert [each.name for each in disk.folder.iterdir() if each.suffix == ".new"] == []
        disk.free()
        saved.keep(observed(200).remembered(), 2.0)
        assert len(recalled(disk.folder).profile.measured()) == 200


def test_it_is_written_now_and_then() -> None:
    saved = SavedMeasurements(Path("nowhere"))
    assert saved.is_due(0.0)
    saved.keep(observed().remembered(), 0.0)
    assert not saved.is_due(EVERY_SECONDS - 0.1)
    assert saved.is_due(EVERY_SECONDS)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path, job(), rows=1_000_000)
    made.start()
    yield made
    made.close()


def test_a_restarted_master_keeps_measurements_per_configuration(stage: Stage, tmp_path: Path) -> None:
    s = stage
    s.wait_for(Phase.TRAINING)
    # While it runs, too: a master that is killed writes nothing at its end.
    s.wait((tmp_path / MEASUREMENTS_FILE).exists)
    known = [Measured(configuration=TWO, steps=500, samples=10_000, worker_seconds=50.0)]
    s.service._seen.profile.recall(known)
    s.stop()
    s.start()
    assert s.service.is_continued
    profile = s.call(GetProfile(), Profile)
    assert [each for each in profile.measured if each.configuration == TWO] == known


def test_a_restarted_master_keeps_the_cost_of_deleted_pods(stage: Stage) -> None:
    s = stage
    s.wait_for(Phase.TRAINING)
    s.stop()
    first = s.history = history(running("ps", 4.0, 1000.0))
    s.start()
    s.wait(lambda: first.costs.core_seconds >= 4000.0)
    s.stop()
    s.history = history()
    s.start()
    assert s.history.costs.core_seconds >= 4000.0
    first.close()
    s.history.close()
