"""`run` survives the restart of a node agent; definite errors of the cluster still end it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elastrec.platform import jobs
from elastrec.platform.cli import job_course
from elastrec.platform.cli.progress import JobProgress
from elastrec.platform.jobs.types import ModelScore
from elastrec.platform.specs.errors import ClusterError, HistoryAwayError
from elastrec.platform.specs.metrics import Phase, TrainingMetrics

SUCCEEDED = jobs.Observation(TrainingMetrics(job="j", phase=Phase.SUCCEEDED))


def cluster_error(*, retryable: bool) -> ClusterError:
    return ClusterError("local cluster 127.0.0.1:1: no answer", retryable=retryable)


def answers(monkeypatch: pytest.MonkeyPatch, *sequence: jobs.Observation | ClusterError) -> Callable[[], None]:
    """Makes `observe` answer these, and returns the wait for the job's end."""
    left = iter(sequence)

    def observe(platform: object, job_id: str) -> jobs.Observation:
        answer = next(left)
        if isinstance(answer, ClusterError):
            raise answer
        return answer

    monkeypatch.setattr(jobs, "observe", observe)
    prepared = SimpleNamespace(job_id="j")
    launched = jobs.Launched(job_id="j", master_pod="j-master", run_id="run", run_url="")
    return lambda: job_course._wait(None, prepared, launched, JobProgress(quiet=True))  # type: ignore[arg-type]


def test_a_cluster_that_is_out_of_reach_for_a_while_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, cluster_error(retryable=True), cluster_error(retryable=True), SUCCEEDED)()


def test_a_job_whose_master_has_ended_with_it_is_over_with_the_result_in_its_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metrics = TrainingMetrics(job="j", phase=Phase.PENDING)
    ended = jobs.Observation(metrics, reachable=False, has_ended=True)
    monkeypatch.setattr(jobs, "result_of", lambda platform, prepared: SUCCEEDED.metrics)
    answers(monkeypatch, ended)()


def test_a_cluster_that_stays_unreachable_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_course, "_SILENCE_SECONDS", -1.0)
    with pytest.raises(ClusterError, match="no answer"):
        answers(monkeypatch, cluster_error(retryable=True), SUCCEEDED)()


def test_a_job_that_the_cluster_does_not_know_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterError, match="no answer"):
        answers(monkeypatch, cluster_error(retryable=False), SUCCEEDED)()


def test_a_job_that_another_process_publishes_and_removes_first_has_its_figures_in_the_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trained = TrainingMetrics(job="j", phase=Phase.SUCCEEDED, samples_trained=30, samples_total=30)
    launched = jobs.Launched(job_id="j", master_pod="j-master", run_id="run", run_url="")
    score = ModelScore(0.8, 0.9, 10)
    is_removed = False

    def evaluate(*_: object) -> jobs.GateDecision:
        nonlocal is_removed
        is_removed = True
        return jobs.GateDecision(passed=True, reason="good", candidate=score)

    def result_of(*_: object) -> TrainingMetrics:
        if is_removed:
            raise ClusterError("job j: not in the cluster")
        return trained

    registered = jobs.Registered(name="m", version="1", is_champion=True, model_uri="models:/m/1")
    monkeypatch.setattr(job_course, "work_folder", lambda: tmp_path)
    monkeypatch.setattr(job_course, "_trained", lambda *_: launched)
    for name, found in (
        ("evaluate_and_gate", evaluate), ("result_of", result_of), ("with_tracking", lambda *_: registered),
        ("with_run", lambda *_: launched), ("finish_job", lambda *_: None), ("forget", lambda *_: None),
    ):  # fmt: skip
        monkeypatch.setattr(jobs, name, found)
    prepared: Any = SimpleNamespace(job_id="j")
    course = job_course.Course(prepared=prepared, again="call it again", keep=False)
    outcome = job_course.train_and_publish(None, course, JobProgress(quiet=True))  # type: ignore[arg-type]
    assert (outcome.samples_trained, outcome.samples_total, outcome.auc) == (30, 30, 0.8)


@pytest.mark.parametrize("is_back", [True, False])
def test_the_run_of_a_published_job_is_closed_when_mlflow_is_back_or_by_the_same_command(
    monkeypatch: pytest.MonkeyPatch, is_back: bool
) -> None:
    calls: list[str] = []

    def finish_job(*_: object) -> None:
        calls.append("finish")
        if len(calls) == 1:
            raise HistoryAwayError("its run stays open")

    def with_tracking(platform: object, prepared: object, step: Callable[[], None], announce: object) -> None:
        if not is_back:
            raise HistoryAwayError("MLflow has not answered")
        step()

    for name, found in (
        ("finish_job", finish_job), ("with_tracking", with_tracking), ("forget", lambda *_: calls.append("forget")),
    ):  # fmt: skip
        monkeypatch.setattr(jobs, name, found)
    prepared: Any = SimpleNamespace(job_id="j")
    course = job_course.Course(prepared=prepared, again="call it again", keep=False)
    if is_back:
        job_course._finish(None, course, JobProgress(quiet=True))  # type: ignore[arg-type]
        assert calls == ["finish", "finish", "forget"]
    else:
        with pytest.raises(HistoryAwayError, match="MLflow has not answered; when MLflow is back, call it again"):
            job_course._finish(None, course, JobProgress(quiet=True))  # type: ignore[arg-type]
        assert calls == ["finish"]


@pytest.mark.parametrize(("auc", "shown"), [(0.75, "AUC 0.75000   in 2.0 s"), (None, "log loss 0.12500   in 2.0 s")])
def test_the_outcome_shows_the_log_loss_where_auc_is_not_defined(
    auc: float | None, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = jobs.Result(
        run_id="r", model_uri="models:/m-1", auc=auc, normalized_entropy=None, samples_total=9, samples_trained=9,
        shards_total=1, shards_done=1, seconds=2.0, pods=[], gate="AUC is not defined", log_loss=0.125,
    )  # fmt: skip
    job_course.show_outcome(outcome, "text")
    assert capsys.readouterr().out.splitlines()[0] == shown
