"""Days and hours in the time zone of a log: each row belongs to exactly one, also when clocks change."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from elastrec.platform.data.convert import ByTime, convert
from elastrec.platform.data.log_calendar import LogCalendar
from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.partitions import Partition
from elastrec.platform.jobs import Interval
from elastrec.platform.specs.data import Partitioning
from elastrec.platform.specs.errors import DataError
from tests.platform.data.rows import data, table, write_parquet

ZONES = sorted(zone for zone in available_timezones() if "/" in zone and not zone.startswith(("Etc/", "posix/")))
SECONDS = st.integers(0, int(datetime(2040, 1, 1, tzinfo=UTC).timestamp()))
UNITS = st.sampled_from([Partitioning.DAY, Partitioning.HOUR])


def key_by_the_clock(zone: str, unit: Partitioning, second: int) -> Partition:
    """What a clock on the wall shows, asked of Python for one moment."""
    shown = datetime.fromtimestamp(second, ZoneInfo(zone))
    return Partition(shown.date(), -1 if unit is Partitioning.DAY else shown.hour)


@given(zone=st.sampled_from(ZONES), unit=UNITS, seconds=st.lists(SECONDS, min_size=1, max_size=40))
@example("America/St_Johns", Partitioning.DAY, [1256437860 + i for i in range(-7200, 7200, 60)])
@example("Pacific/Apia", Partitioning.DAY, [1325239200 + i for i in range(-90_000, 90_000, 3600)])
@example("America/Sao_Paulo", Partitioning.HOUR, [1540695600 + i for i in range(-7200, 7200, 60)])
@example("Australia/Lord_Howe", Partitioning.HOUR, [1759591800 + i for i in range(-7200, 7200, 60)])
def test_every_row_belongs_to_the_one_day_or_hour_that_a_clock_shows(
    zone: str, unit: Partitioning, seconds: list[int]
) -> None:
    calendar = LogCalendar(zone, unit)
    keys = calendar.keys_of(np.array(seconds, np.int64)).tolist()
    assert [calendar.partition(key) for key in keys] == [key_by_the_clock(zone, unit, second) for second in seconds]


@given(zone=st.sampled_from(ZONES), unit=UNITS, second=SECONDS)
@example("America/St_Johns", Partitioning.DAY, 1257042660)
@example("America/Sao_Paulo", Partitioning.DAY, 1540695600)
@example("Asia/Beirut", Partitioning.DAY, 1648332000)
@example("Pacific/Apia", Partitioning.DAY, 1325239200)
def test_a_partition_begins_at_its_first_moment_and_ends_where_the_next_one_begins(
    zone: str, unit: Partitioning, second: int
) -> None:
    calendar = LogCalendar(zone, unit)
    partition = key_by_the_clock(zone, unit, second)
    begin = int(calendar.begin(partition).timestamp())
    assert begin <= second
    assert key_by_the_clock(zone, unit, begin) == partition
    assert key_by_the_clock(zone, unit, begin - 1) < partition
    assert calendar.end(partition) > calendar.begin(partition)


@given(
    zone=st.sampled_from(ZONES), unit=UNITS, start=SECONDS, hours=st.lists(st.integers(1, 60), min_size=2, max_size=4)
)
def test_intervals_side_by_side_choose_each_partition_once(
    zone: str, unit: Partitioning, start: int, hours: list[int]
) -> None:
    calendar = LogCalendar(zone, unit)
    bounds = [datetime.fromtimestamp(start, UTC)]
    for count in hours:
        bounds.append(bounds[-1] + timedelta(hours=count))

    def between(first: datetime, last: datetime) -> list[Partition]:
        try:
            return calendar.between(first, last)
        except DataError:
            return []

    pieces = [partition for first, last in pairwise(bounds) for partition in between(first, last)]
    assert pieces == between(bounds[0], bounds[-1])
    assert len(set(pieces)) == len(pieces)


def test_a_local_day_at_utc_minus_8_is_the_partition_of_its_own_name() -> None:
    calendar = LogCalendar("America/Los_Angeles")
    start, end, evaluation_end = Interval("2026-01-02T00:00:00-08:00").resolved("America/Los_Angeles").moments()
    assert calendar.between(start, end) == [Partition(date(2026, 1, 2))]
    assert calendar.between(end, evaluation_end) == [Partition(date(2026, 1, 3))]
    assert calendar.begin(Partition(date(2026, 1, 2))) == datetime(2026, 1, 2, 8, tzinfo=UTC)


@pytest.mark.parametrize(("day", "hours"), [("2026-03-08", 23), ("2026-11-01", 25), ("2026-07-01", 24)])
def test_a_day_is_a_calendar_day_of_23_to_25_hours(day: str, hours: int) -> None:
    start, end, evaluation_end = Interval(day).resolved("America/Los_Angeles").moments()
    assert end - start == timedelta(hours=hours)
    calendar = LogCalendar("America/Los_Angeles")
    assert [str(found) for found in calendar.between(start, end)] == [f"day={day}"]
    assert len(calendar.between(end, evaluation_end)) == 1


@pytest.mark.parametrize(
    ("day", "missing", "count"), [("2026-03-08", 2, 23), ("2026-11-01", None, 24), ("2026-07-01", None, 24)]
)
def test_a_skipped_hour_has_no_partition_and_a_repeated_one_has_one(day: str, missing: int | None, count: int) -> None:
    calendar = LogCalendar("America/Los_Angeles", Partitioning.HOUR)
    start, end, _ = Interval(day).resolved("America/Los_Angeles").moments()
    hours = [found.hour for found in calendar.between(start, end)]
    assert hours == [hour for hour in range(24) if hour != missing]
    assert len(hours) == count


def test_partitions_are_those_that_begin_in_the_interval() -> None:
    days = LogCalendar("UTC").between(datetime(2026, 1, 30), datetime(2026, 2, 2))
    assert [str(day) for day in days] == ["day=2026-01-30", "day=2026-01-31", "day=2026-02-01"]
    hours = LogCalendar("UTC", Partitioning.HOUR).between(datetime(2026, 1, 1, 22, 30), datetime(2026, 1, 2, 1))
    assert [str(hour) for hour in hours] == ["day=2026-01-01/hour=23", "day=2026-01-02/hour=00"]
    with pytest.raises(DataError, match=r"no day begins .* in the time zone UTC"):
        LogCalendar("UTC").between(datetime(2026, 1, 2), datetime(2026, 1, 2))


@pytest.mark.parametrize("unit", ["day", "hour"])
def test_rows_are_converted_to_the_days_of_the_logs_zone(tmp_path: Path, unit: str) -> None:
    # From the evening before the clocks go forward in Los Angeles, one row every half an hour.
    begin = int(datetime(2026, 3, 8, 6, tzinfo=UTC).timestamp())
    seconds = begin + np.arange(60) * 1800
    rows = table(60).append_column("time", pa.array(seconds))
    write_parquet(tmp_path / "log" / "a.parquet", rows)
    of = data(tmp_path / "log", timestamp="time", timezone="America/Los_Angeles")
    report = convert(of, str(tmp_path / "new"), layout=ByTime(unit=unit))
    expected: dict[str, int] = {}
    for second in seconds.tolist():
        name = key_by_the_clock("America/Los_Angeles", Partitioning(unit), second).folder
        expected[name] = expected.get(name, 0) + 1
    assert report.partitions == expected
    assert (report.data.timezone, build_manifest(report.data).rows) == ("America/Los_Angeles", 60)
    with pytest.raises(DataError, match=r"converted with another data\.timezone"):
        convert(of.model_copy(update={"timezone": "UTC"}), str(tmp_path / "new"), layout=ByTime(unit=unit))
