"""`scale` refuses invalid options before it looks for the job, and reports a missing job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from elastrec.platform import jobs
from elastrec.platform.cli.app import root
from elastrec.platform.cli.commands import scale
from elastrec.platform.specs.errors import ElastrecError
from elastrec.platform.specs.metrics import Phase, TrainingMetrics
from elastrec.platform.transport.messages.job import Done
from elastrec.platform.transport.messages.observer import (
    CancelShape,
    ChangeShape,
    GetStatus,
    ShapeAnswer,
    ShapeOutcome,
    ShapeRequest,
    Status,
)
from tests.platform.jobs.scaling.masters import Masters, masters

JOB = "clicks-1"


@pytest.fixture
def outcomes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ShapeOutcome]]:
    """The outcomes of a request that the master of JOB reports, one after the other; then it ends."""
    reported = list[ShapeOutcome]()
    metrics = TrainingMetrics(job=JOB, phase=Phase.TRAINING).model_dump_json().encode()

    def status(cluster: Masters) -> Status:
        request = ShapeRequest(
            request_id="s-1", wanted="2 workers", outcome=reported.pop(0), reason="why", asked_by="notice"
        )
        if not reported:
            cluster._addresses.clear()
        return Status(metrics_json=metrics, shape_requests=[request])

    with masters(tmp_path) as cluster:
        cluster.serve(
            JOB,
            {
                ChangeShape: lambda _: ShapeAnswer("s-1"),
                GetStatus: lambda _: status(cluster),
                CancelShape: lambda _: Done(),
            },
        )
        monkeypatch.setattr(jobs.Platform, "from_environment", lambda **options: cluster.platform)
        monkeypatch.setattr(scale, "pods_of", lambda platform, job: [])
        yield reported


@pytest.mark.parametrize(
    ("reported", "outcome", "code"),
    [
        ([ShapeOutcome.OPEN, ShapeOutcome.DONE], "done", 0),
        ([ShapeOutcome.OPEN, ShapeOutcome.REFUSED], "refused", 1),
        ([ShapeOutcome.OPEN, ShapeOutcome.OPEN], "gone", 1),
    ],
)
def test_waiting_ends_with_the_outcome_also_of_a_job_that_ends_first(
    outcomes: list[ShapeOutcome], reported: list[ShapeOutcome], outcome: str, code: int
) -> None:
    outcomes.extend(reported)
    done = CliRunner().invoke(root, ["scale", JOB, "--workers", "2", "-o", "json"])
    assert (json.loads(done.stdout)["outcome"], done.exit_code) == (outcome, code)


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_cancelled_request_is_named(outcomes: list[ShapeOutcome], output: str) -> None:
    outcomes.extend([ShapeOutcome.OPEN, ShapeOutcome.OPEN])
    done = CliRunner().invoke(root, ["scale", JOB, "--cancel", "--output", output])
    assert done.exit_code == 0, done.output
    if output == "text":
        assert done.stdout == f"{JOB}: cancelled: 2 workers (requested by the master, because a pod will be ended)\n"
    else:
        cancelled = json.loads(done.stdout)
        named = [cancelled[name] for name in ("outcome", "request_id", "wanted", "asked_by")]
        assert named == ["cancelled", "s-1", "2 workers", "notice"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--servers", "0"], "0 is not in the range x>=1"),
        (["--workers", "two"], "'two' is not a valid integer"),
        (["--other-node"], "--other-node needs --move"),
        ([], "no change is requested; give --workers, --servers"),
        (["--cancel", "--servers", "2"], "--cancel is for an earlier request and allows no other option"),
    ],
)
def test_impossible_sizes_are_refused(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(root, ["scale", "a-job", *arguments])
    assert done.exit_code == 2 and words in done.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--worker-memory", "2GB"], "--worker-memory: '2GB' is not allowed"),
        (["--server-memory", "2gib"], "did you mean 2Gi?"),
        (["--workers", "2", "--timeout", "soon"], "--timeout: 'soon' is not allowed"),
        (["--workers", "2", "--timeout", "0s"], "--timeout: '0s' is not allowed; allowed: a duration above 0"),
        (
            ["--workers", "2", "--timeout", "2d"],
            "--timeout: '2d' is not allowed; allowed: a duration above 0, at most 24h",
        ),
        (["--worker-cores", "inf"], "--worker-cores: 'inf' is not allowed; allowed: a number of cores such as 2, 0.5"),
        (["--server-cores", "two"], "--server-cores: 'two' is not allowed"),
    ],
)
def test_an_invalid_amount_is_refused_with_a_suggestion(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(root, ["scale", "a-job", *arguments])
    assert isinstance(done.exception, ElastrecError) and words in str(done.exception)


def test_nothing_is_started_for_a_job_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTREC_HOME", str(tmp_path / "home"))
    for variable in ("ELASTREC_TLS", "ELASTREC_CLUSTER", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(variable, raising=False)
    done = CliRunner().invoke(root, ["scale", "a-job", "--servers", "3"])
    assert isinstance(done.exception, ElastrecError) and "no node agent runs" in f"{done.output}{done.exception}"
    assert not (tmp_path / "home" / "agent").exists()
