"""In the benchmark, half of all look-ups go to a few buckets, all on one server."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.common.live_jobs import Trained
from benchmarks.jobs import hot_server
from elastrec.platform.specs.metrics import Phase, TrainingMetrics
from elastrec.platform.transport.messages.ledger import Explanation, TimelineEntry
from elastrec.trainers.parameter_server.hashing import buckets_of


def trained(*story: tuple[float, str]) -> Trained:
    entries = [TimelineEntry(unix_seconds=1e9 + seconds, seconds=seconds, what=what) for seconds, what in story]
    return Trained(
        90.0, TrainingMetrics(job="hot", phase=Phase.SUCCEEDED), Explanation("hot", "Succeeded", 90.0, {}, 1.0, entries)
    )


def test_half_of_the_look_ups_meet_buckets_of_the_first_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot_server, "_ROWS", 2_000)
    hot_server.skewed_log(tmp_path)
    buckets = np.concatenate(
        [
            buckets_of(table[name].to_numpy().astype(np.int64), name, hot_server._BUCKETS)
            for file in sorted(tmp_path.rglob("*.parquet"))
            for table in [pq.read_table(file)]
            for name in table.schema.names
            if name.startswith("C")
        ]
    )
    hot = np.isin(buckets, hot_server._SERVERS * np.arange(hot_server._HOT_BUCKETS))
    assert len(buckets) >= 2_000 * hot_server._SPARSE
    assert hot.mean() == pytest.approx(hot_server._HOT_SHARE + 0.5 * 8 / 256, abs=0.02)
    # The other half is spread over all servers.
    assert np.bincount(buckets[~hot] % hot_server._SERVERS, minlength=3).min() > 0.3 * (~hot).sum()


def test_the_restart_shares_the_same_cores_out() -> None:
    restart = hot_server._RESTART
    cores = restart["spec.resources.parameter_server.count"] * restart["spec.resources.parameter_server.cores"]
    assert cores == pytest.approx(hot_server._SERVERS * hot_server._SERVER_CORES)


def test_relief_is_timed_from_the_begin_of_training() -> None:
    job = trained(
        (4.0, "the job is training"),
        (41.0, "3 hot buckets move away from ps-0"),
        (60.0, "1 hot buckets move away from ps-0"),
    )
    assert hot_server.relieved_seconds(job) == 37.0


def test_a_job_without_a_relief_gives_no_figure() -> None:
    with pytest.raises(RuntimeError, match="not relieved"):
        hot_server.relieved_seconds(trained((4.0, "the job is training")))
