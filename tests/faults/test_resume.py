"""A stopped or failed job continues from its last record; a signal to the master does not interrupt a job."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastrec.checkpoints import list_records, list_terms
from elastrec.platform import jobs
from elastrec.platform.clusters.pods import PodPhase
from elastrec.platform.master.reporting.ledger import read_ledger
from elastrec.platform.specs.metrics import Phase, Role, TrainingMetrics
from elastrec.platform.specs.text.loading import job_from_json, job_to_json
from tests.faults.surroundings import ROWS, SHARDS, Run, Site, kept, renamed, small_job, write_model
from tests.faults.test_surroundings import AUC_TOLERANCE, python_path
from tests.processes import elastrec_at, wait_for

pytestmark = pytest.mark.services


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
def signalled(site: Site, prepared: jobs.Prepared) -> tuple[TrainingMetrics, set[str], set[str]]:
    """A job whose master got SIGTERM: its end, and the pods before and at the end, by name and uid."""
    run = site.launch(prepared)
    run.trained(0.25)
    (master,) = site.processes(f"{run.job_id}-master")
    before = pods_of(run)
    master.send_signal(signal.SIGTERM)
    wait_for(lambda: not master.is_running() or master.status() == "zombie", 240, "the end of the process")
    run.when(lambda found: found.shards_done > SHARDS // 4, "a master that goes on")
    metrics = run.finished()
    after = pods_of(run)
    run.finish()
    return metrics, before, after


def pods_of(run: Run) -> set[str]:
    return {f"{pod.name} {pod.uid}" for pod in run.site.platform.launcher.pods(run.job_id)}


def check_auc(auc: float | None, signalled: tuple[TrainingMetrics, set[str], set[str]]) -> None:
    """As good as a job that lost no row and never went back."""
    expected = signalled[0].auc
    assert auc is not None and expected is not None
    assert abs(auc - expected) < AUC_TOLERANCE


def two_records(run: Run) -> None:
    first = run.when(lambda found: found.checkpoint, "a first record")
    run.when(lambda found: found.checkpoint != first, "a second record")


def test_a_signal_to_the_master_neither_stops_the_job_nor_loses_rows(
    signalled: tuple[TrainingMetrics, set[str], set[str]],
) -> None:
    metrics, before, after = signalled
    assert after <= before
    # Nothing was rolled back, and what the master did not learn while it was away it learned later.
    assert metrics.generation == 0 and metrics.samples_trained == ROWS


def test_a_failed_job_is_continued_with_the_same_key(
    site: Site, prepared: jobs.Prepared, signalled: tuple[TrainingMetrics, set[str], set[str]], folder: Path
) -> None:
    own = renamed(prepared)
    first = site.begin(own)
    two_records(first)
    journal_is_damaged(site, first)
    jobs.stop(site.platform, own.job_id, "it failed")
    assert site.platform.launcher.pods(own.job_id) == []
    second = site.begin(own)
    resumed = wait_for(lambda: entry_of(second, "resumed from "), 240, "a job that goes on")
    metrics = second.when(lambda found: found if found.phase.is_final else None, "the end of the job", 600.0)
    assert metrics.phase is Phase.SUCCEEDED, resumed
    assert metrics.shards_done == metrics.shards_total == SHARDS
    check_auc(metrics.auc, signalled)
    second.finish()
    terms = list_terms(str(folder / "store"), "surroundings", own.job_id)
    assert [term.term for term in terms] == [1, 2] and terms[1].base and terms[1].base in resumed


def test_a_stopped_job_is_resumed_only_from_its_store_and_trains_every_row_once(
    prepared: jobs.Prepared, signalled: tuple[TrainingMetrics, set[str], set[str]], folder: Path
) -> None:
    store, file = str(folder / "store"), folder / "job.json"
    file.write_text(job_to_json(job_from_json(prepared.job_json)))
    job_id = jobs.job_id_for("surroundings", "stopped")

    def records() -> list[str]:
        return [uri for uri, _ in list_records(store, "surroundings", job_id)]

    with elastrec_at(folder / "one") as here:
        running = here.start("run", str(file), "--run-key", "stopped")
        try:
            wait_for(lambda: len(records()) >= 2, 240, "two records")
            # Ctrl-C does the same, but a shell's background processes ignore SIGINT, and so would this one.
            running.send_signal(signal.SIGTERM)
            _, said = running.communicate(timeout=600)
        finally:
            end(running)
        assert running.returncode == 128 + signal.SIGTERM, said
    shutil.rmtree(here.home)
    newest, before = records()[:2]
    part = max(Path(newest.removeprefix("file://")).rglob("*ps-0*"), key=lambda each: each.stat().st_size)
    part.write_bytes(part.read_bytes()[:-1])

    with elastrec_at(folder / "other") as there:
        done = there.call("resume", "surroundings", "--store", store, "--output", "json")
        assert done.returncode == 0, done.stderr
        # Of the two records, the newest one is damaged.
        assert f"Continues from {before} at " in done.stderr and "skipped" in done.stderr and newest in done.stderr
        refused = there.call("resume", job_id, "--store", store)
        assert refused.returncode == 2 and "its model is published" in refused.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["shards_done"] == outcome["shards_total"] == SHARDS and outcome["version"] == "1"
    check_auc(outcome["auc"], signalled)
    terms = list_terms(store, "surroundings", job_id)
    assert [(term.term, term.base) for term in terms] == [(1, ""), (2, before)]
    ledger = read_ledger(store, job_id)
    assert ledger is not None and kept(ledger) == ROWS


def end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
        process.communicate()


def entry_of(run: Run, words: str) -> str:
    return run.entry(words) if jobs.observe(run.site.platform, run.job_id).reachable else ""


def journal_is_damaged(site: Site, run: Run) -> None:
    """The job fails for good: its master can never start again."""
    (process,) = site.processes(f"{run.job_id}-master")
    work = Path(process.environ()["ELASTREC_WORK"])
    process.suspend()
    (work / "journal.sqlite-wal").unlink()
    with (work / "journal.sqlite").open("r+b") as file:
        file.write(bytes(4096))
    process.kill()
    wait_for(lambda: (pod := run.pod(Role.MASTER)) and pod.phase is PodPhase.FAILED, 240, "a master that has failed")
