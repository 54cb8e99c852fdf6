"""The progress line of a running job."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from elastrec.platform.cli.progress import JobProgress, progress_line
from elastrec.platform.specs.metrics import Phase, PodMetrics, Role, TrainingMetrics


def job(phase: Phase = Phase.TRAINING, **fields: object) -> TrainingMetrics:
    return TrainingMetrics.model_validate({"job": "click-1", "phase": phase, **fields})


def test_the_line_shows_shards_samples_speed_loss_and_running_pods() -> None:
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


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.RECOVERING, Phase.SAVING, Phase.EVALUATING])
def test_a_line_has_the_whole_reason_for_which_a_job_waits(phase: Phase) -> None:
    reason = f"the final record waits for the checkpoint store: {'folder/' * 20}part: No space left on device"
    waiting = job(phase, reason=f"{reason}\nmore")
    assert progress_line(waiting).endswith(f"({reason})")
    assert reason[:90] in progress_line(waiting, 60) and reason[:91] not in progress_line(waiting, 60)
    assert reason not in progress_line(job(reason=reason))


def full_line(phase: Phase = Phase.TRAINING) -> TrainingMetrics:
    pods = [PodMetrics(name=role.value, role=role, state="Running") for role in (Role.WORKER, Role.PARAMETER_SERVER)]
    return job(
        phase, shards_total=4000, shards_done=3999, samples_trained=123_456_789, samples_per_second=125_989,
        loss=0.4321, auc=0.7612, pods=pods,
    )  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_a_line_fits_into_the_terminal_and_keeps_shards_and_auc(width: int) -> None:
    line = progress_line(full_line(), width)
    assert len(line) <= width
    assert "shards 3999/4000" in line and "AUC 0.7612" in line


def test_only_what_does_not_fit_is_left_out() -> None:
    whole = progress_line(full_line())
    assert progress_line(full_line(), len(whole)) == whole
    assert "servers" not in progress_line(full_line(), len(whole) - 1) and "workers" in whole


def test_the_last_line_of_a_phase_shows_its_end() -> None:
    output = io.StringIO()
    with JobProgress(console=Console(file=output, width=200)) as progress:
        progress.show(job(shards_total=8, shards_done=7))
        progress.show(job(Phase.EVALUATING, shards_total=8, shards_done=8, evaluation_shards_total=2))
        progress.show(job(Phase.SUCCEEDED, shards_total=8, shards_done=8, evaluation_shards_total=2,
                          evaluation_shards_done=2))  # fmt: skip
    lines = [" ".join(line.split()) for line in output.getvalue().splitlines()]
    assert [line.split()[0] for line in lines] == ["Training", "Training", "Evaluating", "Evaluating", "Succeeded"]
    assert lines[1].endswith("shards 8/8") and lines[3].endswith("shards 2/2")


def lines_of(*observed: TrainingMetrics) -> list[str]:
    output = io.StringIO()
    with JobProgress(console=Console(file=output, width=200)) as progress:
        for metrics in observed:
            progress.show(metrics)
    return [" ".join(line.split()) for line in output.getvalue().splitlines()]


def test_the_last_line_of_a_phase_that_a_rollback_ended_keeps_its_own_figures() -> None:
    lines = lines_of(
        job(Phase.SAVING, shards_total=8, shards_done=8, reason="the final record waits"),
        job(Phase.RECOVERING, shards_total=8, shards_done=3, generation=1, reason="ps-0: gone"),
    )
    bars = [line.partition("shards ")[2] for line in lines]
    assert bars == ["8/8 (the final record waits)", "3/8 (ps-0: gone)"]


def test_a_master_that_does_not_answer_changes_no_line_of_another_phase() -> None:
    lines = lines_of(
        job(shards_total=8, shards_done=3),
        job(Phase.PENDING, reason="the master does not answer"),
        job(shards_total=8, shards_done=4),
    )
    assert [line.split()[0] for line in lines] == ["Training", "Pending", "Training"]
    assert "shards 3/8" in lines[0] and lines[1] == "Pending (the master does not answer)" and "4/8" in lines[2]
