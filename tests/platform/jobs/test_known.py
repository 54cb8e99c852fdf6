"""Messages of commands about jobs for which they cannot do anything."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from elastrec.checkpoints import open_store, write_launch
from elastrec.platform.cli import completion
from elastrec.platform.clusters.pods import PodPhase, PodSize, PodStatus
from elastrec.platform.jobs.known import not_in_cluster, unknown, without_run
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.jobs.watching.past import report
from elastrec.platform.specs.errors import ClusterError, SpecError
from elastrec.platform.specs.metrics import Role


def master(job: str) -> PodStatus:
    return PodStatus(
        name=f"{job}-master", uid="1", job=job, role=Role.MASTER, phase=PodPhase.RUNNING, size=PodSize(1.0, 2**30)
    )


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`clicks-2` runs; `clicks-1` is over and has left its launch in the default store."""
    store = open_store(str(tmp_path / "checkpoints"))
    for job_id in ("clicks-1", "clicks-2"):
        write_launch(store.uri, "clicks", job_id, b"{}")
    launcher = SimpleNamespace(jobs=lambda: [master("clicks-2")], pods=lambda: [master("clicks-2")])
    found = SimpleNamespace(launcher=launcher, work_uri=str(tmp_path))
    monkeypatch.setattr(Platform, "for_looking", staticmethod(lambda: found))
    return found


@pytest.mark.parametrize("name", ["clicks-1", "clicks-1-worker-0"])
def test_messages_about_an_ended_job_name_the_commands_that_still_work(platform: Any, name: str) -> None:
    message = str(not_in_cluster(platform, name))
    assert "is over and has no pods" in message
    for command in ("explain", "report", "ledger"):
        assert f"`elastrec {command} clicks-1`" in message


@pytest.mark.parametrize("written", ["clicks", "click-2"])
def test_a_job_that_was_nearly_named_is_suggested(platform: Any, written: str) -> None:
    assert "did you mean 'clicks-2'?" in str(not_in_cluster(platform, written))
    assert "did you mean 'clicks-2'?" in str(unknown(platform, written))


@pytest.mark.parametrize(
    ("written", "remedy"),
    [("clicks", "did you mean 'clicks-2'?"), ("click-1", "did you mean 'clicks-1'?"),
     ("clicks-1", "--experiment names another"), ("sales", "--experiment names another")],
)  # fmt: skip
def test_a_report_suggests_the_job_that_was_nearly_named_or_another_experiment(
    platform: Any, tmp_path: Path, written: str, remedy: str
) -> None:
    platform.tracking_uri, platform.ui_url = f"sqlite:///{tmp_path}/mlflow.db", ""
    with pytest.raises(SpecError, match="a job with a run in MLflow's experiment 'daily'") as refused:
        report(platform, written, "daily")
    assert remedy in str(refused.value)


def test_a_report_needs_no_cluster_for_its_suggestion(platform: Any) -> None:
    def away() -> list[PodStatus]:
        raise ClusterError("the node agent does not answer")

    platform.launcher.jobs = away
    assert "did you mean 'clicks-2'?" in str(without_run(platform, "click-2", "daily"))


def test_an_unknown_job_lists_those_that_there_are(platform: Any) -> None:
    message = str(not_in_cluster(platform, "sales"))
    assert "a job of the cluster: clicks-2; `elastrec explain` knows jobs that are over: clicks-1, clicks-2" in message
    assert "clicks-1, clicks-2; --store names another checkpoint store" in str(unknown(platform, "sales"))


def test_a_job_without_pods_that_has_left_only_its_launch_is_not_suggested_again(platform: Any) -> None:
    message = str(unknown(platform, "clicks-1"))
    assert "'clicks-1', which was launched but has left nothing else in" in message
    assert "`elastrec agent start`" in message and "did you mean" not in message


def test_a_command_completes_only_names_that_it_accepts(platform: Any) -> None:
    context, parameter = SimpleNamespace(params={}), click.Argument(["job"])
    assert completion.running_jobs(context, parameter, "cl") == ["clicks-2"]  # type: ignore[arg-type]
    assert completion.all_jobs(context, parameter, "cl") == ["clicks-1", "clicks-2"]  # type: ignore[arg-type]
    assert completion.running_pods(context, parameter, "clicks-2-") == ["clicks-2-master"]  # type: ignore[arg-type]
    assert completion.all_jobs(context, parameter, "sales") == []  # type: ignore[arg-type]


def test_completion_is_silent_where_the_cluster_does_not_answer(platform: Any) -> None:
    def away() -> list[PodStatus]:
        raise ClusterError("the node agent does not answer")

    platform.launcher.jobs = away
    assert completion.running_jobs(SimpleNamespace(params={}), click.Argument(["job"]), "") == []  # type: ignore[arg-type]
