"""A worker compiles its kernels before it registers; if it did so later, its lease of a shard could expire."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.transport.messages.directive import Mode
from elastrec.platform.transport.messages.job import Register, Registered
from tests.manifests import write_manifest
from tests.trainers.worker.conftest import ROWS, ScriptedMaster
from tests.trainers.worker.processes.pods import Pods

pytestmark = pytest.mark.services

WORKER, SERVER = "elastrec.trainers.worker", "elastrec.trainers.parameter_server"


@pytest.mark.parametrize("servers", [1, 2])
def test_nothing_is_compiled_after_the_worker_has_registered(
    scripted_master: Callable[..., ScriptedMaster],
    pods: Pods,
    tiny_job: Callable[..., object],
    tmp_path: Path,
    servers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = tiny_job(mode="async")
    uri, cache = str(tmp_path / "manifest.json"), tmp_path / "cache"
    write_manifest(build_manifest(job.spec.data), uri)  # type: ignore[attr-defined]
    compiled: list[set[Path]] = []
    register = ScriptedMaster.on_register

    def note(self: ScriptedMaster, message: Register) -> Registered:
        if message.pod == "worker-0":
            compiled.append(kernels(cache))
        return register(self, message)

    monkeypatch.setattr(ScriptedMaster, "on_register", note)
    master = scripted_master(job, uri, uri, servers)
    for index in range(servers):
        pods.start(master, f"ps-{index}", SERVER)
    master.add_shards("train", ROWS, 300)
    # The cache of a machine on which nothing has run yet.
    worker = pods.start(master, "worker-0", WORKER, NUMBA_CACHE_DIR=str(cache))
    master.wait_for(lambda: len(master.done) == 3, 240)
    master.done.clear()
    master.add_shards("evaluate", ROWS, 300)
    master.command(Mode.EVALUATE)
    master.wait_for(lambda: len(master.done) == 3)
    master.command(Mode.EXIT)
    assert worker.wait(60) == 0, pods.log("worker-0")
    (before,) = compiled
    assert before and kernels(cache) == before


def kernels(cache: Path) -> set[Path]:
    """Compiled kernels: one file for every combination of argument types."""
    return set(cache.rglob("*.nbc"))
