"""What `prepare` leaves alone: the files of a job that runs under the same key."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elastrec.platform.clusters.local.config import LocalConfig
from elastrec.platform.data import read_manifest
from elastrec.platform.jobs import Platform, prepare
from elastrec.platform.jobs.starting import preparation
from elastrec.platform.specs.job import TrainingJob
from tests.platform.master.fakes import FakeLauncher, job


class _Usable:
    """Takes every model; a real check loads torch."""

    def __init__(self, job: TrainingJob) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def wait(self) -> None:
        pass


def write_day(folder: Path, day: int, rows: int) -> None:
    place = folder / f"day=2026-01-{day:02}"
    place.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"label": [0] * rows, "user": list(range(rows))}), place / "part-0.parquet")


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Platform:
    monkeypatch.setattr(preparation, "ModelCheck", _Usable)
    for day in (1, 2):
        write_day(tmp_path / "data", day, 100 * day)
    return Platform(FakeLauncher(), LocalConfig(address="", token=""), "", str(tmp_path / "work"), tmp_path)


def test_preparing_other_rows_under_the_same_key_keeps_the_files_of_the_running_job(
    platform: Platform, tmp_path: Path
) -> None:
    clicks = job()
    running = prepare(platform, clicks, "clicks-1")
    uris = (running.training_manifest, running.evaluation_manifest)
    before = [read_manifest(uri) for uri in uris]
    assert [manifest.rows for manifest in before] == [100, 200]

    write_day(tmp_path / "data", 3, 300)
    later = prepare(platform, clicks, "clicks-1")
    assert [read_manifest(uri) for uri in uris] == before
    assert read_manifest(later.training_manifest).rows == later.training_rows == 300
    assert read_manifest(later.evaluation_manifest).rows == later.evaluation_rows == 300


def test_preparing_the_same_rows_again_makes_no_other_manifests(platform: Platform, tmp_path: Path) -> None:
    first, again = (prepare(platform, job(), "clicks-1") for _ in range(2))
    assert first == again
    assert len(list((tmp_path / "work/manifests/clicks-1").iterdir())) == 2
