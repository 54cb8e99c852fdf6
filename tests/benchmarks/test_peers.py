"""Benchmarks with peers in separate environments: the message if the environment is missing, and the ratios."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.servers import flash_checkpoint, parameter_server_peer
from tests.benchmarks.calling import benchmark


def test_without_tensorflow_the_benchmark_tells_how_to_install_it(tmp_path: Path) -> None:
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
    ours, single, merged, *_ = parameter_server_peer.figures_of(speeds, {})
    assert (ours.value, ours.met) == (pytest.approx(3.0), True)
    assert single.value == pytest.approx(8.0)
    assert (merged.value, merged.goal) == (pytest.approx(80 / 45), None)


def answers(*seconds: float, **others: float) -> list[dict[str, float]]:
    return [{"seconds": each, **others} for each in seconds]


MEASURED = {
    "full": answers(2.0, 3.0, blocked_seconds=0.5),
    "full_before_changes": answers(4.0, 2.0),
    "flush": answers(2.0, 1.0),
    "memcpy": answers(1.0, 1.0),
    "raw_write": answers(4.0, 2.0),
    "restore_memory": answers(2.0, 2.0),
    "restore_disk": answers(6.0, 6.0),
    "restore_store": answers(8.0, 12.0),
    "restart": answers(9.0, 7.0, memcpy_seconds=2.0, ready_seconds=3.0, pages_seconds=1.0, pages_bytes=5e8),
    "changes": answers(0.4, 0.2),
    "dlrover_memory": answers(1.0, 1.0),
    "dlrover_disk": answers(8.0, 8.0, synced_seconds=16.0),
    "dlrover_restore": answers(1.0, 1.0),
    "dlrover_memcpy": answers(0.5, 0.5),
}


def test_ratios_are_medians_of_rounds_side_by_side() -> None:
    figures = flash_checkpoint.figures_of(MEASURED, 4.0, {})
    values = {each.figure.partition(".")[2]: each.value for each in figures}
    assert values == pytest.approx(
        {
            "blocked_to_memcpy": 4.0, "changes_to_full": 0.1, "durable_to_raw_write": 1.5, "restore_to_memcpy": 2.0,
            "restart_to_memcpy": 4.0, "restore_disk_to_memory": 3.0, "restore_store_to_memory": 5.0,
        }
    )  # fmt: skip
    (restart,) = [each for each in figures if each.figure.endswith("restart_to_memcpy")]
    assert restart.settings == {"ready_seconds": 3.0, "pages_seconds": 1.0, "pages_bytes": 5e8}


def test_without_an_s3_server_no_restore_is_compared_with_its_store() -> None:
    measured = {side: answers for side, answers in MEASURED.items() if side != "restore_store"}
    figures = {each.figure.partition(".")[2] for each in flash_checkpoint.figures_of(measured, 4.0, {})}
    assert "restore_disk_to_memory" in figures and "restore_store_to_memory" not in figures


def test_dlrover_is_compared_with_ours_and_with_a_memcpy_of_its_own_bytes() -> None:
    figures = flash_checkpoint.peer_figures(MEASURED, {"blocked_seconds": 3.0}, {"seconds": 4.0}, {})
    values = {each.figure.partition(".")[2]: each.value for each in figures}
    assert values == pytest.approx(
        {
            "blocked_to_dlrover": 0.5, "first_blocked_to_dlrover": 0.75, "durable_to_dlrover": 0.5,
            "restore_to_dlrover": 2.0, "durable_to_synced_dlrover": 0.25, "dlrover.blocked_to_memcpy": 2.0,
            "dlrover.first_blocked_to_memcpy": 8.0, "dlrover.durable_to_memcpy": 16.0, "dlrover.restore_to_memcpy": 2.0,
        }
    )  # fmt: skip
    met = {each.figure.partition(".")[2]: each.met for each in figures if each.goal}
    assert "durable_to_dlrover" not in met, "one side on the disk, the other in memory"
    assert met.pop("restore_to_dlrover") is False and list(met.values()) == [True] * 3


def test_without_dlrover_its_figures_are_left_out_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert flash_checkpoint.peer_python(tmp_path / "none") is None
    said = capsys.readouterr().err
    assert "there is no DLRover in" in said and "--install" in said
    python = tmp_path / "there" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert flash_checkpoint.peer_python(tmp_path / "there") == python and not capsys.readouterr().err
