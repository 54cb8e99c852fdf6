"""Formatting of numbers and charts."""

from __future__ import annotations

import pytest

from elastrec.platform.history.words import Chart, cores, duration, figure, money, size, tenths


def test_a_chart_fits_its_box_and_needs_two_points() -> None:
    chart = Chart.of("AUC", [(0, 0.5), (100, float("nan")), (200, 0.75)])
    assert chart is not None
    assert (chart.points, chart.low, chart.high, chart.last) == ("0.0,95.0 1000.0,5.0", "0.5", "0.75", 200)
    assert Chart.of("AUC", [(0, 0.5)]) is None
    fast = Chart.of("Samples per second", [(0, 0.0), (1, 55_310.4)])
    assert fast is not None and fast.high == "55,310"


@pytest.mark.parametrize("count", [300, 301, 599, 100_001])
def test_a_chart_of_many_points_is_small_and_keeps_its_peaks_and_its_end(count: int) -> None:
    series = [(step, 0.5 + step % 10 / 100) for step in range(count)]
    series[count // 2 + 1], series[count // 3 + 1] = (count // 2 + 1, 9.0), (count // 3 + 1, -3.0)
    chart = Chart.of("Loss", series)
    assert chart is not None and (chart.low, chart.high, chart.last) == ("-3", "9", count - 1)
    places = [tuple(map(float, point.split(","))) for point in chart.points.split()]
    assert len(places) <= 302 and places == sorted(places, key=lambda place: place[0])
    assert {y for _, y in places} >= {5.0, 95.0} and places[-1][0] == 1000.0


def test_numbers_are_shown_as_people_read_them() -> None:
    assert [duration(each) for each in (None, 5.4, 200, 7500)] == ["–", "5 s", "3 min 20 s", "2 h 05 min"]
    assert [size(each) for each in (512, 2**20, 3 * 2**40)] == ["512 B", "1 MiB", "3.0 TiB"]
    assert [figure(each) for each in (0.12345, float("nan"), None)] == ["0.1235", "–", "–"]
    sums = [money(each, "EUR") for each in (1234.5, 0.25, 7.7234e-5, 0.0)]
    assert sums == ["1,234.50 EUR", "0.25 EUR", "0.0000772 EUR", "0 EUR"]
    assert [tenths(each) for each in (1234.56, None)] == ["1,234.6 s", "unknown"]


def test_only_one_core_is_singular() -> None:
    assert [cores(number) for number in (1.0, 0.5, 2.0)] == ["1 core", "0.5 cores", "2 cores"]
