"""The momentary speed: the choice of windows."""

from __future__ import annotations

import pytest

from elastrec.platform.master.measuring.momentary_speed import MomentarySpeed


def speed(*windows: tuple[int, float]) -> MomentarySpeed:
    made = MomentarySpeed()
    for samples, seconds in windows:
        made.add(samples, seconds)
    return made


def test_it_is_known_after_one_window():
    assert speed((500, 1.0)).samples_per_second == 500.0 and speed((500, 1.0)).deviation == 0.0


def test_pauses_count_and_the_time_before_the_first_sample_does_not():
    assert speed((0, 9.0), (0, 1.0)).samples_per_second == 0.0
    assert speed((0, 9.0), (300, 1.0), (0, 1.0), (300, 1.0)).samples_per_second == pytest.approx(200.0)


def test_its_deviation_is_that_of_windows_by_their_length():
    found = speed((100, 1.0), (600, 3.0))
    assert found.samples_per_second == pytest.approx(175.0)
    assert found.deviation == pytest.approx(((75**2 + 3 * 25**2) / 4) ** 0.5)


def test_windows_older_than_a_minute_are_forgotten():
    found = speed(*[(10, 5.0)] * 20, *[(5000, 5.0)] * 12)
    assert found.samples_per_second == 1000.0 and found.deviation == 0.0
