"""Timestamps in all notations of logs."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elastrec.platform.data.convert import ByTime, convert
from elastrec.platform.specs.errors import DataError
from tests.platform.data.rows import data, table, write_parquet

# 23:30 on New Year's eve in Los Angeles.
SECOND = 1767252600
MOMENT = datetime.fromtimestamp(SECOND, UTC)
LOCAL = datetime(2025, 12, 31, 23, 30)


def converted(folder: Path, time: pa.Array, **more: Any) -> dict[str, int]:
    write_parquet(folder / "log" / "a.parquet", table(len(time)).append_column("time", time))
    of = data(folder / "log", timestamp="time", **{"timezone": "America/Los_Angeles", **more})
    report = convert(of, str(folder / "new"), layout=ByTime())
    assert report.data.timestamp_unit == "seconds"
    return report.partitions


@pytest.mark.parametrize(
    ("time", "unit"),
    [
        (pa.array([SECOND]), "seconds"),
        (pa.array([float(SECOND) + 0.9]), "seconds"),
        (pa.array([str(SECOND)]), "seconds"),
        (pa.array([SECOND * 1000 + 999]), "milliseconds"),
        (pa.array([SECOND * 10**6]), "microseconds"),
        (pa.array([SECOND * 10**9]), "nanoseconds"),
        (pa.array([MOMENT], pa.timestamp("ms", "UTC")), "seconds"),
        (pa.array([LOCAL], pa.timestamp("ns")), "seconds"),
        (pa.array([date(2025, 12, 31)]), "seconds"),
        (pa.array([date(2025, 12, 31)], pa.date64()), "seconds"),
        (pa.array(["2025-12-31T23:30:00"]), "seconds"),
        (pa.array(["2025-12-31 23:30"]), "seconds"),
        (pa.array(["2026-01-01T07:30:00Z"]), "seconds"),
        (pa.array(["2026-01-01T08:30:00.250+01:00"]), "seconds"),
        (pa.array(["2025-12-31"]), "seconds"),
    ],
)
def test_a_row_goes_to_its_local_day_for_every_form_of_timestamps(tmp_path: Path, time: pa.Array, unit: str) -> None:
    assert converted(tmp_path, time, timestamp_unit=unit) == {"day=2025-12-31": 1}


def test_the_last_nanosecond_of_a_day_is_not_rounded_into_the_next_one(tmp_path: Path) -> None:
    midnight = 1767225600
    times = pa.array([midnight * 10**9 - 1, midnight * 10**9])
    assert converted(tmp_path, times, timestamp_unit="nanoseconds", timezone="UTC") == {
        "day=2025-12-31": 1,
        "day=2026-01-01": 1,
    }


def test_a_column_may_have_texts_with_and_without_an_offset(tmp_path: Path) -> None:
    times = pa.array(["2025-12-31T23:30:00", "2026-01-01T07:30:00Z", "2026-01-01"])
    assert converted(tmp_path, times) == {"day=2025-12-31": 2, "day=2026-01-01": 1}


@pytest.mark.parametrize(
    "time",
    [
        pa.array([SECOND, SECOND * 1000]),
        pa.array([SECOND, None]),
        pa.array(["2026-01-01", "2026-02-30"]),
        pa.array(["2026-01-01", "01/02/2026"]),
        pa.array(["2026-01-01", "2026-01-01T25:00:00Z"]),
        pa.array([1.0, float("nan")]),
        pa.array([MOMENT, None], pa.timestamp("ms", "UTC")),
    ],
)
def test_a_row_without_a_usable_time_is_reported_with_a_remedy(tmp_path: Path, time: pa.Array) -> None:
    with pytest.raises(DataError, match=r"a.parquet: row 1, column 'time': found .*expected seconds.*timestamp_unit"):
        converted(tmp_path, time)
