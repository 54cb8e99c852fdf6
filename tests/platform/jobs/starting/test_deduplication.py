"""The choice of deduplicated features is made before any pod starts, and is part of the job that all pods get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.jobs.starting.deduplication import with_groups
from elastrec.platform.jobs.starting.launching import launch_request
from elastrec.platform.jobs.types import Interval, Prepared
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.text.loading import job_to_json
from tests.platform.data.deduplicating.test_deduplication_choice import log
from tests.platform.jobs.conftest import ALLOCATION


def job(folder: Path, deduplication: Any) -> TrainingJob:
    content = {
        "metadata": {"name": "click"},
        "spec": {
            "model": {"architecture": "dlrm"},
            "data": log(folder / "log"),
            "training": {"batch_size": 160},
            "deduplication": deduplication,
        },
    }
    return TrainingJob.model_validate(content)


def test_auto_becomes_groups_that_every_pod_gets(tmp_path: Path) -> None:
    asked = job(tmp_path, "auto")
    decided, explained = with_groups(asked, build_manifest(asked.spec.data))
    assert decided.spec.deduplication.groups == (("cart", "likes"),)
    assert "cart" in explained and "group 0" in explained
    prepared = Prepared(
        job_id="click-1", job_json=job_to_json(decided), interval=Interval("", "", ""), training_manifest="t",
        evaluation_manifest="e", training_rows=1_600, evaluation_rows=0, deduplication=explained,
    )  # fmt: skip
    launched = launch_request(prepared, ALLOCATION).training_job
    assert launched.spec.deduplication.groups == (("cart", "likes"),)


def test_off_reads_nothing(tmp_path: Path) -> None:
    asked = job(tmp_path, "off")
    manifest = build_manifest(asked.spec.data)
    (tmp_path / "log" / "a.parquet").unlink()
    assert with_groups(asked, manifest) == (asked, "")
