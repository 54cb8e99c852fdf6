"""A job of real processes changes from any number of servers and workers to any other without losing parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastrec.platform.specs.metrics import Role
from tests.faults.campaign.job import BATCH_ROWS, ROWS
from tests.faults.campaign.site import site_at
from tests.faults.live.contents import setbacks
from tests.faults.live.jobs import PATIENCE_SECONDS, live_job
from tests.processes import wait_for

pytestmark = pytest.mark.services

FIRST, COUNTS = 4, (3, 1, 2)
STEPS, EPOCHS = 4, 4
PATIENT = {"lease": "60s", "heartbeat_timeout": "30s"}
"""So many processes take turns: none is to be given up because it waits for a core."""


@pytest.mark.timeout(3600)
def test_changes_of_servers_and_workers_keep_the_trained_model(
    tmp_path: Path,
) -> None:
    with (
        site_at(tmp_path / "home") as site,
        live_job(
            site,
            "any-to-any",
            mode="async",
            workers=FIRST,
            servers=FIRST,
            admit_after=40,
            slow_seconds=1.0,
            epochs=EPOCHS,
            interval="1h",
            faults=PATIENT,
        ) as job,
    ):
        trained, last = 0, None
        for count in COUNTS:
            trained += STEPS * BATCH_ROWS
            wait_for(lambda: job.metrics().samples_trained > trained, 3 * PATIENCE_SECONDS, "some steps")  # noqa: B023
            with job.at_rest():
                before = job.contents()
                job.change(parameter_servers=count)
                between = job.contents()
                job.change_at_rest(workers=count)
                after = job.contents()
                trained = job.metrics().samples_trained
                assert [len(job.pods(role)) for role in (Role.PARAMETER_SERVER, Role.WORKER)] == [count, count]
            assert before.digests() == between.digests() == after.digests()
            assert not before.doubled and not between.doubled and not after.doubled
            assert before.rows and before.candidates and before.dense and before.marks and trained < EPOCHS * ROWS
            if last is not None:
                assert last.digests() != before.digests() and setbacks(last, before) == []
            last = after
        metrics = job.train_to_the_end()
        assert metrics.generation == 0 and metrics.samples_trained == metrics.samples_total == EPOCHS * ROWS
        accounts, _ = job.accounts()
    assert not accounts.problems and (accounts.lost, accounts.repeated) == (0, 0)
