"""The code of the deduplication benchmarks, on logs of a few hundred rows."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest

from benchmarks.common.session_log import LogShape, session_log
from benchmarks.data import dedup_factor, dedup_reader, dedup_storage, dedup_worker
from elastrec.platform.data.clustering.clustering import cluster

SHAPE = LogShape(rows=400, open_sessions=25, length=20, user_lists=2)


def test_the_log_is_in_order_of_time_and_has_the_requested_shape() -> None:
    log = session_log(SHAPE)
    times = np.asarray(log["time"])
    assert (np.diff(times) >= 0).all()
    assert log.num_rows / len(np.unique(np.asarray(log["session"]))) == pytest.approx(16.2, rel=0.5)
    lengths = {name: len(log[name][0]) for name in ("u0", "u1", "i0")}
    assert lengths == {"u0": 20, "u1": 20, "i0": SHAPE.item_length}
    assert SHAPE.item_length / (40 + SHAPE.item_length) == pytest.approx(0.19, abs=0.02)


def test_a_session_keeps_its_lists_or_shifts_them_by_one() -> None:
    log = session_log(SHAPE).sort_by([("session", "ascending"), ("time", "ascending")])
    session, lists = np.asarray(log["session"]), np.array(log["u0"].to_pylist())
    kept = shifted = 0
    for row in np.flatnonzero(session[1:] == session[:-1]) + 1:
        if (lists[row] == lists[row - 1]).all():
            kept += 1
        else:
            shifted += 1
            assert (lists[row][:-1] == lists[row - 1][1:]).all()
    assert kept > 10 * shifted > 0


def test_storage_compares_the_same_rows() -> None:
    same, own, once = dedup_storage.measure_storage(SHAPE, 3.7)
    assert once.settings["clustered_bytes"] == own.settings["clustered_bytes"] and once.settings["once_bytes"] > 0
    assert same.settings["clustered_bytes"] == own.settings["clustered_bytes"] > 0
    assert same.settings["time_order_bytes"] >= own.settings["time_order_bytes"]
    one, one_landed, *others = dedup_storage.measure_shards(SHAPE)
    assert one.value == one_landed.value == 1.0
    assert len(others) == 2 * (len(dedup_storage.SHARDS) - 1) and all(each.value != 1.0 for each in others)


def test_the_readers_are_measured_part_by_part() -> None:
    figures = {each.figure: each for each in dedup_reader.measure(argparse.Namespace(rows=400, rounds=1))}
    assert figures["dedup_reader.sent_bytes"].value > 2
    assert figures["dedup_reader.deduplicated: convert"].value > 0
    assert figures["dedup_reader.at_rest.sent_bytes"].value == 1.0
    assert figures["dedup_reader.at_rest.read_bytes"].value > 0


def test_the_sides_of_a_worker_are_decided_by_the_rule_and_train_the_same_rows(tmp_path: Path) -> None:
    dedup_worker.write_log(
        tmp_path / "time", LogShape(rows=3_000, samples_per_session=20, open_sessions=3_000, length=20)
    )
    log = dedup_worker.job_on(tmp_path / "time", "dlrm", 64, "off").spec.data
    cluster(log, str(tmp_path / "clustered"))
    for model in dedup_worker.MODELS:
        assert dedup_worker.job_on(tmp_path / "clustered", model, 64, "auto").spec.deduplication.groups == (("u0",),)
        assert dedup_worker.job_on(tmp_path / "time", model, 64, "auto").spec.deduplication.is_off


def test_real_sessions_are_read_from_their_files(tmp_path: Path) -> None:
    (tmp_path / "clicks.tsv").write_text("SessionId\tItemId\tTime\n2\t7\t1.5\n1\t5\t1.0\n1\t6\t2.0\n1\t8\t3.0\n")
    (tmp_path / "ratings.csv").write_text(
        "userId,movieId,rating,timestamp\n1,10,5.0,100\n1,11,2.0,200\n1,12,4.0,300\n1,13,1.0,400\n2,10,4.5,100\n"
    )
    recent, first = dedup_factor.clicks(str(tmp_path / "clicks.tsv"))
    assert (recent.settings["rows"], recent.settings["samples_per_session"]) == (4, 2.0)
    assert first.settings["d"] == 0.0
    (liked,) = dedup_factor.ratings(str(tmp_path / "ratings.csv"))
    # [], [10], [10], [10, 12] of the first user: one of three rows is as the row before.
    assert liked.settings["d"] == pytest.approx(1 / 3, abs=1e-3)
    assert liked.settings["measured"] == pytest.approx(4 / 3, abs=1e-3)
