"""A complete run fails if a test is skipped for an unlisted reason."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.suite import skips
from tools.stores import fetching

ROOT = Path(__file__).resolve().parents[2]


def test_a_listed_reason_is_allowed_and_another_is_not() -> None:
    reasons = Counter({"the spikes need real servers: `make spikes` runs them": 9, "no group can be frozen here": 2})
    assert skips.not_allowed(reasons) == ["2 left out: no group can be frozen here"]


@pytest.mark.parametrize("server", ["azure", "gcs", "hdfs", "s3"])
def test_a_store_whose_server_was_not_fetched_may_be_left_out(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_cache", lambda: tmp_path)
    monkeypatch.setattr(fetching, "JARS", SimpleNamespace(are_here=False))
    assert (reason := fetching.missing(server)) and not skips.not_allowed(Counter({reason: 48}))


def test_the_reason_is_read_from_pytests_report() -> None:
    assert skips.reason_of(("test_x.py", 3, "Skipped: no disk can be mounted here")) == "no disk can be mounted here"


@pytest.mark.parametrize(
    ("complete", "status", "streams"),
    [("1", 1, ()), ("0", 0, ()), ("1", 1, ("-p", "xdist", "-n", "1"))],
    ids=["complete", "not complete", "complete, xdist"],
)
def test_a_skip_that_is_not_listed_fails_a_complete_run_alone(
    tmp_path: Path, complete: str, status: int, streams: tuple[str, ...]
) -> None:
    (tmp_path / "test_left_out.py").write_text("import pytest\n\ndef test_one():\n    pytest.skip('no such cable')\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", "/dev/null", "--rootdir", str(tmp_path),
         "-o", "markers=services: x", *streams, str(tmp_path)],
        # Installed plug-ins of pytest would take longer to load than the tests run.
        cwd=ROOT, env=os.environ | {skips.VARIABLE: complete, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    assert ("1 left out: no such cable" in done.stdout) is (complete == "1")
