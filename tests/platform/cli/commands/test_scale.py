"""`scale` refuses invalid options before it looks for the job, and reports a missing job."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from elastrec.platform.cli.app import root
from elastrec.platform.specs.errors import ElastrecError


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
