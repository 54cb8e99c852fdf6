"""What `parameter_server_peer` says without TensorFlow, and how its ratio is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.servers.parameter_server_peer import figures_of
from tests.benchmarks.calling import benchmark


def test_without_tensorflow_it_measures_nothing_and_says_how_to_get_it(tmp_path: Path) -> None:
    done = benchmark("parameter_server_peer", "--environment", str(tmp_path / "none"))
    assert done.returncode == 1
    assert "there is no TensorFlow in" in done.stderr and "--install" in done.stderr
    assert done.stdout == ""


def test_the_ratio_is_the_median_of_rounds_side_by_side() -> None:
    speeds = {
        "elastrec": [90.0, 80.0, 10.0],
        "tensorflow": [30.0, 20.0, 5.0],
        "tensorflow_merged_tables": [45.0] * 3,
        "tensorflow_single_steps": [10.0] * 3,
    }
    ours, single, merged, *_ = figures_of(speeds, {})
    assert (ours.value, ours.met) == (pytest.approx(3.0), True)
    assert single.value == pytest.approx(8.0)
    assert (merged.value, merged.goal) == (pytest.approx(80 / 45), None)
