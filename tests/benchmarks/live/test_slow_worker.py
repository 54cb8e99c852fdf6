"""Figures of the benchmark of a slow worker, from given results; no job is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.common.live_jobs import Trained
from benchmarks.jobs import slow_worker
from elastrec.platform.data.generating.generator import GenerateReport, GenerateSpec, generate
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Phase, TrainingMetrics
from elastrec.platform.transport.messages.ledger import Explanation, TimelineEntry

MOVED = "slow-1-worker-1 is slow: its successor starts on another node than slow-node"


@pytest.fixture
def log(tmp_path: Path) -> GenerateReport:
    return generate(GenerateSpec(path=str(tmp_path / "clicks"), rows_per_day=1_000, days=2, dense=2, sparse=3, lists=0))


def trained(*story: tuple[float, str]) -> Trained:
    entries = [TimelineEntry(unix_seconds=1e9 + seconds, seconds=seconds, what=what) for seconds, what in story]
    return Trained(
        90.0, TrainingMetrics(job="slow", phase=Phase.SUCCEEDED), Explanation("slow", "Done", 90.0, {}, 1.0, entries)
    )


@pytest.mark.parametrize("role", ["worker", "parameter_server"])
@pytest.mark.parametrize("mode", ["async", "bsp", "ssp"])
def test_the_sides_differ_in_nothing_but_whether_a_slow_pod_is_moved(log: GenerateReport, mode: str, role: str) -> None:
    moved, alone = (
        TrainingJob.model_validate(slow_worker.job_content(log, mode, 4, role, moves=moves)).spec
        for moves in (True, False)
    )
    assert moved.resources.worker.count + moved.resources.parameter_server.count == 3, "two of the slow pod's role"
    assert moved.training.consistency.mode == mode
    assert moved.faults.slow_pod_moves > 0, "the default"
    assert alone.faults.slow_pod_moves == 0
    faults = alone.faults.model_copy(update={"slow_pod_moves": moved.faults.slow_pod_moves})
    assert alone.model_copy(update={"faults": faults}) == moved


@pytest.mark.parametrize("role", ["worker", "parameter_server"])
def test_a_node_has_room_for_all_pods_of_the_job(log: GenerateReport, role: str) -> None:
    """So the successor of the slow pod finds room on the good node, and so does the restarted job."""
    resources = TrainingJob.model_validate(slow_worker.job_content(log, "bsp", 4, role)).spec.resources
    pods = [resources.master, resources.worker, resources.parameter_server]
    assert sum(pod.count * pod.cores for pod in pods) <= slow_worker._NODE.cores
    assert sum(pod.count * pod.memory for pod in pods) <= slow_worker._NODE.memory_bytes


def test_the_move_is_timed_from_the_begin_of_training() -> None:
    assert slow_worker.moved_seconds(trained((4.0, "the job is training"), (71.0, MOVED))) == 67.0


def test_a_job_whose_slow_pod_was_not_moved_gives_no_figure() -> None:
    with pytest.raises(RuntimeError, match="not moved"):
        slow_worker.moved_seconds(trained((4.0, "the job is training")))
