"""The speed computed from the ledger, the jobs of each case, and the counters of control groups."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks.common.groups import throttling
from benchmarks.jobs.scaling_out import CASES, COUNTS, job_content, steady_speed
from elastrec.platform.data.generating.generator import GenerateReport, GenerateSpec, generate
from elastrec.platform.specs.job import TrainingJob


def ledger(*attempts: tuple[str, float, float]) -> pa.Table:
    """Attempts (pod, began, ended) at shards of 100 rows."""
    rows = [
        {"kind": "train", "outcome": "done", "pod": pod, "from": 0, "to": 100, "began_seconds": a, "ended_seconds": b}
        for pod, a, b in attempts
    ]
    return pa.Table.from_pylist(rows)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> GenerateReport:
    folder = tmp_path_factory.mktemp("data") / "clicks"
    return generate(GenerateSpec(path=str(folder), rows_per_day=1_000, days=2, dense=2, sparse=3, lists=0))


def test_the_speed_counts_the_time_in_which_every_worker_is_warm_and_trains() -> None:
    # One shard a second each, but w-0 is slow at first and w-1 comes a second later and stays longer.
    first = [("w-0", 0.0, 4.0), *(("w-0", 4.0 + i, 5.0 + i) for i in range(9))]
    second = [("w-1", 5.0 + i, 6.0 + i) for i in range(12)]
    assert steady_speed(ledger(*first, *second), 2) == pytest.approx(200.0)


def test_a_shard_partly_within_the_time_counts_with_its_share() -> None:
    quick = [("w-0", float(i), i + 1.0) for i in range(10)]
    slow = [("w-1", 0.1 * i, 0.1 * i + 0.1) for i in range(5)] + [("w-1", 0.5, 20.5)]
    # Both train from 5 to 10: 500 rows, and a quarter of the long shard's 100.
    assert steady_speed(ledger(*quick, *slow), 2) == pytest.approx((500 + 25) / 5)


def test_a_worker_with_too_few_shards_is_not_measured() -> None:
    with pytest.raises(RuntimeError, match="train more samples"):
        steady_speed(ledger(*(("w-0", float(i), i + 1.0) for i in range(5))), 1)


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("count", COUNTS)
def test_only_the_counted_role_grows_and_every_pod_trains_as_much(name: str, count: int, log: GenerateReport) -> None:
    spec = TrainingJob.model_validate(job_content(log, CASES[name], count)).spec
    counts = {"worker": spec.resources.worker.count, "parameter_server": spec.resources.parameter_server.count}
    assert counts.pop(CASES[name].role) == count
    assert list(counts.values()) == [CASES[name].others]
    assert spec.training.epochs * 1_000 == CASES[name].samples_each * count


@pytest.mark.parametrize(
    ("stat", "files"),
    [
        ("nr_periods 8\nnr_throttled 2\nthrottled_time 9\n", {"cpuacct.usage": "1500000000\n"}),
        ("usage_usec 1500000\nnr_periods 8\nnr_throttled 2\n", {}),
    ],
    ids=["cgroup v1", "cgroup v2"],
)
def test_throttling_is_read_from_both_versions_of_control_groups(
    tmp_path: Path, stat: str, files: dict[str, str]
) -> None:
    for name, text in {"cpu.stat": stat, **files}.items():
        (tmp_path / name).write_text(text)
    seen = throttling(tmp_path)
    assert (seen.share, seen.cpu_seconds) == (0.25, 1.5)
    assert seen.since(seen).share == 0.0
