"""No request to a server, no copy of its buckets and no save waits for a kernel that is compiled or loaded."""

from __future__ import annotations

import subprocess
import sys

ROOM = "tests/trainers/parameter_server"
LIVES = {
    "moves": f"{ROOM}/migration/test_moves.py::test_moving_all_buckets_keeps_training_bit_for_bit",
    "synchronous": f"{ROOM}/migration/test_both_ways.py::"
    "test_a_bsp_job_has_the_same_parameters_bit_for_bit_when_two_servers_exchange_buckets",
    "full and delta saves": f"{ROOM}/records/test_copied_rows.py::test_changed_rows_are_written_as_columns",
    "other update rules": f"{ROOM}/storage/test_rules.py::test_one_state_of_whole_rows_becomes_that_of_both_segments",
    "evictions": f"{ROOM}/migration/test_evictions.py",
}
"""Tests in which servers do what they may do between their registration and their end."""


def test_nothing_is_compiled_after_the_server_has_registered() -> None:
    plugin = "tests.trainers.parameter_server.serving.compiled_later"
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", plugin, "-p", "no:cacheprovider", *LIVES.values()],
        capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "compiled later: {}" in ended.stdout
