"""A real master and a real server process whose store hangs: the master decides about the job."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastrec.checkpoints import open_store
from elastrec.platform.clusters.pods import PodSpec
from elastrec.platform.specs import environment
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.transport.messages.ledger import Explanation, GetExplanation
from elastrec.platform.transport.messages.observer import SaveNow
from tests.platform.master.fakes import job
from tests.platform.master.stage import Stage

pytestmark = pytest.mark.services

SERVER = "clicks-1-ps-0"


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


@pytest.fixture
def stage(tmp_path: Path, gate: Path) -> Iterator[Stage]:
    """A job with one real server, whose store hangs while `gate` is there, and scripted workers."""
    faults = {"heartbeat_interval": 0.05, "heartbeat_timeout": 60, "lease": 60, "save_timeout": 1.5}
    resources = {"worker": {"count": 1}, "parameter_server": {"count": 1}, "virtual_buckets": 64}
    made = Stage(tmp_path, job(faults=faults, resources=resources), rows=4000, step_seconds=0.01)
    open_store(made.request.store).create()
    processes: list[subprocess.Popen[bytes]] = []
    play = made.cluster.on_create

    def create(spec: PodSpec) -> None:
        if spec.role is Role.WORKER:
            play(spec)
            return
        files = tmp_path / spec.name
        files.mkdir()
        for name, text in (spec.files | spec.secrets).items():
            (files / name).write_text(text)
        variables = {**os.environ, **spec.environment, environment.FILES: str(files), environment.HOST: "127.0.0.1"}
        module = "tests.trainers.parameter_server.hanging_store"
        with (tmp_path / f"{spec.name}.log").open("ab") as log:
            processes.append(subprocess.Popen([sys.executable, "-m", module, str(gate)], env=variables, stderr=log))

    made.cluster.on_create = create
    try:
        made.start()
        yield made
    finally:
        with contextlib.ExitStack() as stack:
            stack.callback(made.close)
            for process in processes:
                process.kill()
                process.wait(60)


def parts_folders(stage: Stage) -> set[str]:
    return set(open_store(stage.request.store).folders("clicks/records"))


def test_a_save_that_hangs_loses_only_its_record(stage: Stage, gate: Path) -> None:
    stage.wait_for(Phase.TRAINING, 120)
    gate.touch()
    stage.call(SaveNow())
    stage.wait(lambda: any(save.frozen for save in stage.service.state.saves.under_way.values()), 60)
    # Training goes on while the store hangs, not only when the save is given up.
    trained = stage.service.state.training.samples
    stage.wait(lambda: stage.service.state.training.samples > trained and bool(stage.service.state.saves.under_way), 60)
    stage.wait(lambda: stage.service.state.saves.failed == 1, 60)
    assert stage.service.state.phase is Phase.TRAINING and stage.service.state.saves.quiescing is None
    done = stage.service.state.training.done
    stage.wait(lambda: stage.service.state.training.done > done)
    # The server still writes there.
    (abandoned,) = stage.service.state.saves.abandoned.values()
    assert set(abandoned.writers) == {SERVER} and parts_folders(stage) == {abandoned.uri.rpartition("/")[2]}
    gate.unlink()
    stage.wait(lambda: not stage.service.state.saves.abandoned, 60)
    stage.wait(lambda: abandoned.uri.rpartition("/")[2] not in parts_folders(stage), 60)
    stage.wait_for(Phase.SUCCEEDED, 120)
    assert stage.service.state.recovery.rollbacks == 0


def test_a_store_that_hangs_permanently_ends_the_job_with_the_reason(stage: Stage, gate: Path) -> None:
    gate.touch()
    waits: set[str] = set()

    def has_failed() -> bool:
        waits.add(stage.metrics().reason)
        return stage.service.state.phase is Phase.FAILED

    stage.wait(has_failed, 180)
    assert "the final record could not be written in 3 tries" in stage.service.state.failure
    assert f"{SERVER} wrote nothing for 1.5 s (spec.faults.save_timeout)" in stage.service.state.failure
    assert any(f"waiting for {SERVER} for 1 s" in reason for reason in waits), waits
    story = stage.call(GetExplanation(), Explanation)
    assert [entry.what for entry in story.timeline].count("failed") == 1
    assert any(SERVER in entry.cause for entry in story.timeline if entry.what.startswith("could not save"))
