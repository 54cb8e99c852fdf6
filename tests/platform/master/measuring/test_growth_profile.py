"""Growth of tables: the choice of stored points."""

from __future__ import annotations

import pytest

from elastrec.platform.master.measuring.growth_profile import GrowthProfile
from elastrec.platform.transport.messages.job import TableUsage


def profile(*points: tuple[int, int], generation: int = 0) -> GrowthProfile:
    made = GrowthProfile()
    for samples, rows in points:
        made.add(samples, generation, [TableUsage(table="users", rows=rows, bytes=rows * 80)])
    return made


def test_points_lie_ever_farther_apart_and_the_newest_is_always_there():
    (users,) = profile(*((1000 + i, 100 + i) for i in range(1000))).tables()
    assert users.samples[-1] == 1999 and users.rows[-1] == 1099
    assert all(later >= 1.04 * earlier for earlier, later in zip(users.samples, users.samples[1:-1], strict=False))
    assert 10 <= len(users.samples) <= 20 and users.bytes_per_row == pytest.approx(80)


def test_after_a_rollback_the_growth_profile_starts_again():
    made = profile((1000, 100), (2000, 150), (3000, 200))
    made.add(2500, 1, [TableUsage(table="users", rows=160, bytes=12_800)])
    (users,) = made.tables()
    assert users.samples == [2500]


def test_nothing_is_reported_before_there_are_rows():
    assert profile().tables() == [] and profile((1000, 0)).tables() == [] and profile((0, 5)).tables() == []
