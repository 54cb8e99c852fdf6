"""The line of a running job."""

from __future__ import annotations

import io

from rich.console import Console

from elastrec.platform.cli.progress import JobProgress, progress_line
from elastrec.platform.specs.metrics import Phase, PodMetrics, Role, TrainingMetrics


def job(phase: Phase = Phase.TRAINING, **fields: object) -> TrainingMetrics:
    return TrainingMetrics.model_validate({"job": "click-1", "phase": phase, **fields})


def test_the_line_tells_shards_samples_speed_loss_and_who_is_up() -> None:
    pods = [
        PodMetrics(name="w0", role=Role.WORKER, state="Running"),
        PodMetrics(name="w1", role=Role.WORKER, state="Pending"),
        PodMetrics(name="p0", role=Role.PARAMETER_SERVER, state="Running"),
    ]
    line = progress_line(
        job(shards_total=40, shards_done=10, samples_trained=1234567, samples_per_second=50000, loss=0.5, pods=pods)
    )
    for words in ("Training", "10/40", "1,234,567", "50,000/s", "loss 0.5000", "workers 1/2", "servers 1/1"):
        assert words in line


def test_an_auc_is_called_that_of_training_until_the_job_is_evaluated() -> None:
    assert "train AUC 0.7000" in progress_line(job(auc=0.7))
    assert "train" not in progress_line(job(Phase.SUCCEEDED, auc=0.7, evaluated=True))


def test_without_a_terminal_every_phase_leaves_its_last_line_once() -> None:
    output = io.StringIO()
    with JobProgress(console=Console(file=output, width=200)) as progress:
        for done in range(5):
            progress.show(job(shards_total=4, shards_done=done))
        progress.show(job(Phase.SUCCEEDED, shards_total=4, shards_done=4))
    lines = output.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["Training", "Training", "Succeeded"]
    assert "0/4" in lines[0] and "4/4" in lines[1]
