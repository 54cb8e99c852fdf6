"""A job of real processes survives a damaged record and an unreachable store without losing a row."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastrec.checkpoints import list_records
from elastrec.platform.data.generating.generator import GenerateReport, GenerateSpec, generate
from elastrec.platform.master.reporting.explanation import read_explanation
from elastrec.platform.master.reporting.ledger import read_ledger
from tests.e2e.conftest import write_job
from tests.processes import Elastrec, elastrec_at, pod_processes, wait_for

pytestmark = pytest.mark.services

ROWS = 200_000
BATCH, BATCHES = 128, 20
SHARDS = math.ceil(ROWS / (BATCH * BATCHES))
CHANGES: dict[str, Any] = {
    "continual": {"start_from": "nothing"},
    "training": {"batch_size": BATCH, "batches_per_shard": BATCHES, "epochs": 1, "seed": 1},
    "checkpoint": {"interval": "1s", "keep": 3},
}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> GenerateReport:
    folder = tmp_path_factory.mktemp("data") / "clicks"
    return generate(GenerateSpec(path=str(folder), days=2, rows_per_day=ROWS, dense=4, sparse=8, seed=3))


@pytest.fixture
def elastrec(tmp_path: Path) -> Iterator[Elastrec]:
    with elastrec_at(tmp_path / "home") as command_line:
        yield command_line


class Run:
    """A job under way, from its second record on."""

    def __init__(self, elastrec: Elastrec, log: GenerateReport) -> None:
        self.store = elastrec.home / "work" / "checkpoints"
        self._elastrec = elastrec
        self._process = elastrec.start("run", str(write_job(elastrec.home, log, **CHANGES)), "--output", "json")
        self.job = wait_for(lambda: next((job.job for job in elastrec.jobs()), None), 240, "a job")
        self.name = wait_for(self._name, 240, "a record")
        wait_for(lambda: len(self.records()) >= 2, 240, "two records")

    def _name(self) -> str | None:
        return next((path.parent.name for path in self.store.glob("*/records")), None)

    def records(self) -> list[str]:
        return [uri for uri, _ in list_records(str(self.store), self.name, self.job)]

    def process(self, role: str) -> Any:
        return wait_for(lambda: pod_processes(self.job, role, self._elastrec.home), 240, f"a process of {role}")[0]

    def reason(self) -> str:
        return next((job.reason for job in self._elastrec.jobs() if job.job == self.job), "")

    def end(self) -> list[str]:
        """Waits for the job's end and checks what it trained; returns the lines of its story with their causes."""
        output, errors = self._process.communicate(timeout=600)
        assert self._process.returncode == 0, errors
        result = json.loads(output.splitlines()[-1])
        assert result["shards_done"] == result["shards_total"] == SHARDS
        ledger = read_ledger(str(self.store), self.job)
        assert ledger is not None
        kept = ledger.to_pandas().groupby("kind", observed=True)["kept"].sum()
        assert kept["train"] == kept["evaluate"] == ROWS
        story = read_explanation(str(self.store), self.job)
        assert story is not None
        return [f"{entry.what}: {entry.cause}" for entry in story.timeline]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def run(elastrec: Elastrec, log: GenerateReport) -> Iterator[Run]:
    begun = Run(elastrec, log)
    yield begun
    begun.close()


def test_a_job_whose_newest_record_is_damaged_continues_from_the_one_before(run: Run) -> None:
    master = run.process("master")
    # No newer record may be complete before the server is gone.
    master.suspend()
    try:
        newest, before = run.records()[:2]
        for part in Path(newest.removeprefix("file://"), "parts").iterdir():
            data = bytearray(part.read_bytes())
            middle = len(data) // 2
            data[middle : middle + 64] = bytes(byte ^ 0xFF for byte in data[middle : middle + 64])
            part.write_bytes(data)
        run.process("ps-0").kill()
    finally:
        master.resume()
    story = run.end()
    assert any(line.startswith(f"found {newest} damaged: ") and "checksum differs" in line for line in story), story
    assert any(line.startswith(f"rolled back to {before}, ") for line in story), story


def test_a_job_whose_store_fails_during_a_rollback_waits_for_it(run: Run) -> None:
    away = run.store.with_name("away")
    run.store.rename(away)
    run.store.mkdir()  # the mount point of a file system that went away
    run.process("ps-0").kill()
    waiting = wait_for(
        lambda: reason if "waits for the checkpoint store" in (reason := run.reason()) else "",
        240,
        "a reason",
    )
    assert "no checkpoint store is there" in waiting
    assert not list(run.store.iterdir())
    run.store.rmdir()
    away.rename(run.store)
    story = run.end()
    assert not any("damaged" in line for line in story)
    assert sum(line.startswith("lost ") for line in story) == 1
