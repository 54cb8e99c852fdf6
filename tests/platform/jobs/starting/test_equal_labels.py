"""Evaluation rows that all have the same label: refused before a job is trained, if files have statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elastrec.checkpoints import open_store
from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.jobs.starting.equal_labels import refuse_equal_labels
from elastrec.platform.jobs.starting.kept_launch import keep_launch
from elastrec.platform.specs.errors import SpecError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.text.loading import job_to_json
from tests.operators.steps import ALLOCATION, PREPARED
from tests.platform.master.fakes import job

ROWS = 6
ZEROS, BOTH = [0] * ROWS, [0, 1] * (ROWS // 2)


def evaluated(folder: Path, *parts: dict[str, Any], **data: Any) -> TrainingJob:
    """A job that is evaluated on these files of columns, in which sparse users are added, in row groups of two."""
    log = folder / "log"
    log.mkdir(exist_ok=True)
    for number, columns in enumerate(parts):
        table = pa.table({**columns, "user": list(range(ROWS))})
        pq.write_table(table, log / f"part-{number}.parquet", row_group_size=2)
    spec = {"path": str(log), "partitioning": "none", "evaluation_path": str(log), "sparse": [{"name": "user"}]}
    return job(data=spec | data, checkpoint={"store": str(folder / "store")})


def refuse(job: TrainingJob, **manifest: Any) -> None:
    refuse_equal_labels(job, "clicks-1", build_manifest(job.spec.data, None, **manifest))


@pytest.mark.parametrize(
    ("label", "value"),
    [(ZEROS, "0"), ([1.0] * ROWS, "1"), ([False] * ROWS, "0"), ([0, None, 0, 0, 0, 0], "0")],
    ids=["integers", "floats", "booleans", "an empty field"],
)
def test_rows_that_all_have_the_same_label_are_refused_with_the_remedy(
    tmp_path: Path, label: list[Any], value: str
) -> None:
    job = evaluated(tmp_path, {"label": label}, {"label": label}, bad_rows={"policy": "skip", "at_most": 10})
    with pytest.raises(SpecError) as refused:
        refuse(job)
    assert refused.value.field == "spec.data.label"
    assert f"'label' (it is {value} in all 12 rows to evaluate on, {tmp_path}/log)" in str(refused.value)
    assert "allowed: a column with both 0 and 1" in str(refused.value)
    assert "correct the column, or name other rows in spec.data.evaluation_path" in str(refused.value)


@pytest.mark.parametrize(
    "parts",
    [({"label": BOTH},), ({"label": ZEROS}, {"label": [0, 0, 0, 0, 0, 1]}), ({"label": ZEROS}, {"label": [1] * ROWS})],
    ids=["within a row group", "in the last row", "in another file"],
)
def test_rows_with_both_labels_are_not_refused(tmp_path: Path, parts: tuple[dict[str, Any], ...]) -> None:
    refuse(evaluated(tmp_path, *parts))


def test_files_without_statistics_and_text_are_not_refused(tmp_path: Path) -> None:
    without = evaluated(tmp_path, {"label": ZEROS})
    table = pa.table({"label": ZEROS, "user": list(range(ROWS))})
    pq.write_table(table, tmp_path / "log/part-0.parquet", write_statistics=False)
    refuse(without)
    (tmp_path / "log/part-0.parquet").unlink()
    (tmp_path / "log/part-0.csv").write_text("label,user\n" + "0,7\n" * ROWS)
    refuse(evaluated(tmp_path, format="csv"))


def test_labels_that_a_transform_may_change_are_not_refused(tmp_path: Path) -> None:
    transform = "tests.platform.data.transforms:half"
    refuse(evaluated(tmp_path, {"label": ZEROS}, transform=transform), try_rows=False)


def test_a_job_with_another_label_that_its_gate_may_judge_is_not_refused(tmp_path: Path) -> None:
    labels = [{"name": "click"}, {"name": "price", "kind": "value"}]
    refuse(evaluated(tmp_path, {"click": ZEROS, "price": [1.5, 2.0] * 3}, labels=labels))
    with pytest.raises(SpecError) as refused:
        refuse(evaluated(tmp_path, {"click": ZEROS, "price": [1.5] * ROWS}, labels=labels))
    assert "'click' (it is 0" in str(refused.value) and "both 0 and 1" in str(refused.value)
    assert "'price' (it is 1.5" in str(refused.value) and "several values" in str(refused.value)


def test_a_job_that_was_launched_before_is_not_refused_because_it_may_be_trained_already(tmp_path: Path) -> None:
    job = evaluated(tmp_path, {"label": ZEROS})
    open_store(job.spec.checkpoint.store).create()
    prepared = msgspec.structs.replace(PREPARED, job_id="clicks-1", job_json=job_to_json(job))
    keep_launch(job.spec.checkpoint.store, prepared, ALLOCATION, earlier_terms=0)
    refuse(job)
