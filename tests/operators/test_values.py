"""Outputs of tasks are readable on Airflow's XCom page, and unchanged when the next task reads them."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from airflow.sdk.exceptions import AirflowFailException
from hypothesis import given
from hypothesis import strategies as st

from elastrec.operators.base import give, take
from elastrec.operators.training import WarmStartOperator
from elastrec.operators.values import JudgedJob
from elastrec.platform.jobs import Prepared
from elastrec.platform.specs.text.loading import job_to_json, load_job
from tests.operators.steps import JUDGED_JOB, PREPARED, context

JOBS = sorted((Path(__file__).parents[2] / "dags" / "jobs").glob("*.yaml"))


@pytest.mark.parametrize("file", JOBS, ids=lambda file: file.stem)
def test_a_job_is_an_object_in_an_output_and_the_same_text_for_the_next_task(file: Path) -> None:
    job = load_job(file)
    prepared = msgspec.structs.replace(PREPARED, job_json=job_to_json(job))
    output = json.loads(json.dumps(give(prepared)))
    assert output["training_job"]["metadata"]["name"] == job.metadata.name
    assert take(Prepared, output) == prepared


def test_the_job_inside_of_a_value_is_an_object_too() -> None:
    output = give(JUDGED_JOB)
    assert output["launched"]["prepared"]["training_job"] == {}
    assert "job_json" not in json.dumps(output)
    assert take(JudgedJob, output) == JUDGED_JOB


@given(st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False) | st.text() | st.booleans()))
def test_no_number_or_text_of_a_job_changes_on_its_way(options: dict[str, object]) -> None:
    """The text itself: a job that runs is recognised by its digest."""
    spec = {
        "model": {"architecture": "dlrm", "options": options},
        "data": {"path": "clicks", "sparse": [{"name": "a"}]},
    }
    job = load_job({"metadata": {"name": "clicks"}, "spec": spec})
    prepared = msgspec.structs.replace(PREPARED, job_json=job_to_json(job))
    assert take(Prepared, json.loads(json.dumps(give(prepared)))).job_json == prepared.job_json


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (None, r"has no output, .* Prepared: it was marked successful .* Clear that task"),
        ({"job_id": "clicks-1"}, r"is no Prepared: .*job_json.* another version of elastrec .* clear that task"),
    ],
)
def test_an_output_that_is_missing_or_of_another_version_fails_the_task_without_a_retry(
    output: object, words: str
) -> None:
    with pytest.raises(AirflowFailException, match=words):
        WarmStartOperator(task_id="task", prepared=output).execute(context())  # type: ignore[arg-type]
