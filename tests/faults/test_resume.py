"""A job that was stopped or failed goes on from its last record; one whose master is signalled just goes on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastrec.checkpoints import list_terms
from elastrec.platform import jobs
from elastrec.platform.clusters.pods import PodPhase
from elastrec.platform.master.ledger import read_ledger
from elastrec.platform.specs.metrics import Phase, Role, TrainingMetrics
from tests.faults.surroundings import ROWS, SHARDS, Run, Site, kept, renamed, small_job, write_model
from tests.faults.test_surroundings import AUC_TOLERANCE, python_path
from tests.processes import wait_for

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("resume")


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[Site]:
    write_model(folder / "code")
    with python_path(folder / "code"), Site(folder / "agent", folder / "work") as running:
        yield running


@pytest.fixture(scope="module")
def prepared(site: Site, folder: Path) -> jobs.Prepared:
    job = small_job(folder / "clicks", folder / "store")
    return jobs.prepare(site.platform, job, jobs.job_id_for("surroundings", "never launched"))


@pytest.fixture(scope="module")
def undisturbed(site: Site, prepared: jobs.Prepared) -> TrainingMetrics:
    run = site.launch(prepared)
    metrics = run.finished()
    run.finish()
    return metrics


def check_auc(metrics: TrainingMetrics, undisturbed: TrainingMetrics) -> None:
    assert metrics.auc is not None and undisturbed.auc is not None
    assert abs(metrics.auc - undisturbed.auc) < AUC_TOLERANCE


def two_records(run: Run) -> None:
    first = run.when(lambda found: found.checkpoint, "a first record")
    run.when(lambda found: found.checkpoint != first, "a second record")


def test_a_signal_to_the_master_is_no_stop_and_costs_no_row(
    site: Site, prepared: jobs.Prepared, undisturbed: TrainingMetrics
) -> None:
    run = site.launch(prepared)
    run.trained(0.25)
    (master,) = site.processes(f"{run.job_id}-master")
    pods = {pod.name: pod.uid for pod in site.platform.cluster.list(run.job_id)}
    master.send_signal(signal.SIGTERM)
    wait_for(lambda: not master.is_running() or master.status() == "zombie", 30, "the end of the process")
    run.when(lambda found: found.shards_done > SHARDS // 4, "a master that goes on")
    metrics = run.finished()
    assert {pod.name: pod.uid for pod in site.platform.cluster.list(run.job_id)}.items() <= pods.items()
    # Nothing was rolled back, and what the master was not told while it was away it was told later.
    assert metrics.generation == 0 and metrics.samples_trained == ROWS
    check_auc(metrics, undisturbed)
    run.finish()


@pytest.mark.parametrize("how", ["stopped", "failed"])
def test_a_job_that_ended_for_good_goes_on_under_the_same_key_and_its_ledger_holds_every_row_once(
    site: Site, prepared: jobs.Prepared, undisturbed: TrainingMetrics, folder: Path, how: str
) -> None:
    own = renamed(prepared)
    first = site.begin(own)
    two_records(first)
    if how == "stopped":
        assert jobs.stop(site.platform, own.job_id, "enough")
    else:
        journal_is_damaged(site, first)
        jobs.stop(site.platform, own.job_id, "it failed")
    assert site.platform.cluster.list(own.job_id) == []
    second = site.begin(own)
    resumed = wait_for(lambda: told(second, "resumed from "), 60, "a job that goes on")
    metrics = second.when(lambda found: found if found.phase.is_final else None, "the end of the job", 200.0)
    assert metrics.phase is Phase.SUCCEEDED, resumed
    assert metrics.shards_done == metrics.shards_total == SHARDS
    check_auc(metrics, undisturbed)
    second.finish()
    terms = list_terms(str(folder / "store"), "surroundings", own.job_id)
    assert [term.term for term in terms] == [1, 2] and terms[1].base and terms[1].base in resumed
    if how == "stopped":
        ledger = read_ledger(str(folder / "store"), own.job_id)
        assert ledger is not None and kept(ledger) == ROWS


def told(run: Run, words: str) -> str:
    return run.told(words) if jobs.observe(run.site.platform, run.job_id).reachable else ""


def journal_is_damaged(site: Site, run: Run) -> None:
    """The job fails for good: its master can never start again."""
    (process,) = site.processes(f"{run.job_id}-master")
    work = Path(process.environ()["ELASTREC_WORK"])
    process.suspend()
    (work / "journal.sqlite-wal").unlink()
    with (work / "journal.sqlite").open("r+b") as file:
        file.write(bytes(4096))
    process.kill()
    wait_for(lambda: (pod := run.pod(Role.MASTER)) and pod.phase is PodPhase.FAILED, 60, "a master that has failed")
