"""What a job's run in MLflow is called."""

from __future__ import annotations

import pytest

from elastrec.platform.history.records import run_name
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
