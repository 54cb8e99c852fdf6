"""Messages while a job waits for an unreachable MLflow."""

from __future__ import annotations

from pathlib import Path

import msgspec

from elastrec.platform.clusters.local.config import LocalConfig
from elastrec.platform.jobs.ending.tracking import wait_for_tracking
from elastrec.platform.jobs.starting.starting_sizes import warm_start
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.text.loading import job_to_json
from tests.operators.steps import PREPARED
from tests.platform.master.fakes import FakeLauncher


def test_a_password_in_the_tracking_uri_is_never_shown(tmp_path: Path) -> None:
    config = LocalConfig(address="127.0.0.1:1", token="t")
    platform = Platform(FakeLauncher(), config, "http://user:secret@127.0.0.1:1", str(tmp_path), tmp_path)
    lines: list[str] = []
    assert not wait_for_tracking(platform, 0.05, lines.append)
    assert len(lines) == 1 and lines[0].startswith("MLflow at http://user:***@127.0.0.1:1 does not answer")
    job = TrainingJob.model_validate(
        {
            "metadata": {"name": "clicks"},
            "spec": {
                "model": {"architecture": "dlrm"},
                "data": {"path": "clicks", "sparse": [{"name": "ad"}]},
                "history": {"launch_wait": 0},
                "scaling": {"start": "history"},
            },
        }
    )
    source = warm_start(platform, msgspec.structs.replace(PREPARED, job_json=job_to_json(job))).source
    assert "http://user:***@127.0.0.1:1" in source and "secret" not in source
    assert "secret" not in repr(platform)
