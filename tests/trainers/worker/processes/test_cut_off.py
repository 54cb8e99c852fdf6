"""A server in a separate network namespace whose connection is interrupted during a push."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.transport.messages.directive import Mode
from tests.faults.namespaces import cable
from tests.manifests import write_manifest
from tests.trainers.worker.conftest import ROWS, ScriptedMaster
from tests.trainers.worker.processes.pods import Pods

pytestmark = pytest.mark.services

WORKER, SERVER = "elastrec.trainers.worker", "elastrec.trainers.parameter_server"
SHARD_ROWS, EPOCHS = 100, 40
SHARDS = EPOCHS * ROWS // SHARD_ROWS
CUT_SECONDS = 4.0
"""Longer than a worker's patience with a server, and than a heartbeat may take."""


def test_a_worker_and_a_server_that_are_cut_off_from_each_other_train_on_afterwards(
    scripted_master: Callable[..., ScriptedMaster],
    pods: Pods,
    tiny_job: Callable[..., TrainingJob],
    tmp_path: Path,
) -> None:
    job = tiny_job(mode="bsp")
    uri = str(tmp_path / "manifest.json")
    write_manifest(build_manifest(job.spec.data), uri)
    with cable() as link:
        master = scripted_master(job, uri, uri, 1, link.near)
        pods.start(master, "ps-0", SERVER, within=link.inside(), ELASTREC_HOST=link.far)
        for epoch in range(EPOCHS):
            master.add_shards("train", ROWS, SHARD_ROWS, epoch=epoch)
        worker = pods.start(master, "worker-0", WORKER)
        master.wait_for(lambda: len(master.done) >= 10)
        with link.pulled():
            before = len(master.done)
            time.sleep(CUT_SECONDS)
            # What was on its way may still arrive; no more.
            assert len(master.done) <= before + 2 < SHARDS
        master.wait_for(lambda: len(master.done) == SHARDS)
        master.command(Mode.EXIT)
        assert worker.wait(60) == 0, pods.log("worker-0")
    assert len({done.number for done in master.done}) == SHARDS, "every shard once"
