"""`run` survives the restart of a node agent; definite errors of the cluster still end it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from elastrec.platform import jobs
from elastrec.platform.cli import job_course
from elastrec.platform.cli.progress import JobProgress
from elastrec.platform.specs.errors import ClusterError
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


def test_a_cluster_that_stays_unreachable_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_course, "_SILENCE_SECONDS", -1.0)
    with pytest.raises(ClusterError, match="no answer"):
        answers(monkeypatch, cluster_error(retryable=True), SUCCEEDED)()


def test_a_job_that_the_cluster_does_not_know_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterError, match="no answer"):
        answers(monkeypatch, cluster_error(retryable=False), SUCCEEDED)()
