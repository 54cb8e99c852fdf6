"""The name of a job's run in MLflow."""

from __future__ import annotations

import datetime

import pytest

from elastrec.platform.history.records import dataset_name, run_name
from elastrec.platform.jobs.types import Interval


@pytest.mark.parametrize(
    ("start", "end", "shown"),
    [
        ("2026-01-01T00:00:00+00:00", "2026-01-04T00:00:00+00:00", "clicks 2026-01-01 to 2026-01-03"),
        ("2026-01-01T07:00:00+00:00", "2026-01-01T08:00:00+00:00", "clicks 2026-01-01T07:00 to 2026-01-01T08:00"),
        ("", "", "clicks"),
    ],
)
def test_the_name_of_a_run_contains_the_days_of_its_data(start: str, end: str, shown: str) -> None:
    assert run_name("clicks", Interval(start, end, end)) == shown


@pytest.mark.parametrize(
    ("timezone", "day"),
    [
        ("Asia/Shanghai", "2026-01-02"),
        ("Europe/Berlin", "2026-03-29"),  # 23 hours
        ("Europe/Berlin", "2026-10-25"),  # 25 hours
        ("America/New_York", "2026-11-01"),
    ],
)
def test_a_run_has_the_name_of_the_day_in_the_time_zone_of_the_log(timezone: str, day: str) -> None:
    interval = Interval(day).resolved(timezone)
    assert run_name("clicks", interval) == f"clicks {day}"
    after = datetime.date.fromisoformat(day) + datetime.timedelta(days=1)
    assert dataset_name("/logs/clicks", interval, "evaluation") == f"clicks {after}"
