"""A job that continues from its own record is compared with it, as with the record of another job."""

from __future__ import annotations

from typing import Any

import pytest

from elastrec.platform.jobs.starting.launching import _adaptation
from elastrec.platform.master.pods.launch import LaunchRequest
from elastrec.platform.master.service.resumption import own_records
from elastrec.platform.specs.errors import SpecError
from tests.platform.master.fakes import job, launch
from tests.platform.master.masters import Make, saved, stage_fixture, trained  # noqa: F401
from tests.platform.master.stage import Stage

pytestmark = pytest.mark.usefixtures("some_fleet")
WIDE = {"architecture": "dlrm", "embedding_dimension": 32}


def stopped(s: Stage) -> str:
    """A record of a job that was stopped after it."""
    s.start()
    trained(s, 5)
    uri = saved(s)
    s.stop()
    return uri


def again(s: Stage, **spec: Any) -> LaunchRequest:
    """The next launch of the job, with another job file."""
    return launch(s.request.store, job(**spec), rows=s.request.training_rows)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"tables": {"user": {"hash_size": 100}}}, "spec.tables.user.hash_size: dimension 16, adagrad, hash_size 100"),
        ({"model": WIDE, "continual": {"on_mismatch": "refuse"}}, "spec.model.embedding_dimension: dimension 32"),
    ],
    ids=["hash size", "on_mismatch: refuse"],
)
def test_a_model_that_its_own_record_does_not_fit_is_refused(stage: Make, spec: dict[str, Any], field: str) -> None:
    s = stage()
    uri = stopped(s)
    assert [record.uri for record in own_records(again(s), 3)] == [uri]
    with pytest.raises(SpecError) as caught:
        own_records(again(s, **spec), 3)
    assert field in str(caught.value)
    assert "with another run key, or spec.continual.resume: never" in str(caught.value)


def test_what_is_initialised_again_of_its_own_record_is_shown(stage: Make) -> None:
    s = stage()
    stopped(s)
    changed = again(s, model=WIDE)
    (record,) = own_records(changed, 3)
    assert "the dimension changed from 16 to 32" in _adaptation(record, changed)
    assert _adaptation(record, again(s)) == ""
