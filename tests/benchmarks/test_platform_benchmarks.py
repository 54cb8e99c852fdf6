"""The code of the platform benchmarks: with minimal work, they still return every figure."""

from __future__ import annotations

import argparse
import threading
import time
from pathlib import Path

import pytest

from benchmarks.common.figures import Figure
from benchmarks.data import reader
from benchmarks.jobs import calls, shards
from benchmarks.processes import reader as processes
from benchmarks.servers import checkpoint, storage
from elastrec.platform.specs.data import FileFormat

pytestmark = pytest.mark.services


def _values(figures: list[Figure]) -> dict[str, float]:
    assert all(figure.value > 0 for figure in figures if figure.figure != "shards.memory_per_finished_shard")
    return {figure.figure: figure.value for figure in figures}


def test_the_master_grants_shards_and_hears_played_workers():
    rounds = shards.leasing(shards=2048, rounds=1)
    assert rounds[0].settings["finished"] >= 1024
    (beating,) = shards.heartbeats("beating", workers=3, seconds=0.6, rounds=1, at_most=100.0, shards=True)
    assert beating.simulated and beating.settings["beat_seconds"] == 0.5
    assert {"shards.per_second", "shards.memory_per_finished_shard"} <= _values([*rounds, beating]).keys()


def test_calls_of_our_wire_stand_beside_those_of_flight():
    found = _values(calls.measure(argparse.Namespace(calls=5, rounds=1)))
    assert {"calls.tcp_per_cpu_second_to_flight", "calls.local_per_cpu_second_to_flight"} <= found.keys()


def test_records_stand_beside_the_same_bytes(tmp_path: Path):
    found = _values(checkpoint.measure(argparse.Namespace(rows=26_000, rounds=1, folder=str(tmp_path))))
    assert found.keys() >= {"checkpoint.save_to_memcpy", "checkpoint.restore_to_raw_read", "checkpoint.save_cpu"}
    assert not list(tmp_path.iterdir())


def test_the_rows_of_a_server_are_measured_in_one_process(tmp_path: Path):
    found = _values(
        storage.measure(argparse.Namespace(rows=100_000, evicted_rows=100_000, seconds=0.2, folder=str(tmp_path)))
    )
    assert found["storage.bytes_per_row"] < 100
    assert {"storage.two_cores", "storage.pull_p99_while_saving", "storage.restore_4096_buckets"} <= found.keys()
    assert not list(tmp_path.iterdir())


def test_cpu_seconds_are_those_of_all_threads():
    def work() -> None:
        end = time.thread_time() + 0.1
        while time.thread_time() < end:
            pass

    def in_a_thread() -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    assert storage._cpu_seconds(in_a_thread) >= 0.1


def test_all_readers_of_a_criteo_log_read_the_same_rows(tmp_path: Path):
    path = reader.click_log(tmp_path, FileFormat.CRITEO_TSV, 1500).spec.path
    readers = [
        processes.ours(path, 64, 3, tensors=False), processes.ours(path, 64, 3, tensors=True),
        processes.plain(path, 64), processes.torchrec(path, 64),
    ]  # fmt: skip
    assert [read(1500) for read in readers] == [1500] * 4


def test_readers_stand_beside_each_other_in_processes_of_their_own(tmp_path: Path):
    log = reader.click_log(tmp_path, FileFormat.PARQUET, 3000)
    found = _values(reader.speeds(log, batch=512, rounds=1))
    assert found.keys() >= {"reader.parquet_to_pyarrow_batch_512", "reader.parquet_batch_512.ours"}
