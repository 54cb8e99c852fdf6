"""A worker and a server with different code: a permanent refusal at once, which names both versions."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.transport.versions import code_version
from tests.manifests import write_manifest
from tests.trainers.worker.conftest import ROWS, ScriptedMaster
from tests.trainers.worker.processes.pods import Pods

pytestmark = pytest.mark.services

WORKER, SERVER = "elastrec.trainers.worker", "elastrec.trainers.parameter_server"
REPOSITORY = Path(__file__).parents[4]


def other_code(folder: Path) -> Path:
    """A copy of the package that sends a field of a push by another name.

    Only the worker uses it, because it has few kernels to compile; a server would have to compile all of its kernels.
    """
    package = folder / "other" / "elastrec"
    for room in ("platform", "trainers", "checkpoints"):
        shutil.copytree(REPOSITORY / room, package / room)
    messages = package / "trainers" / "parameter_server" / "messages.py"
    before = messages.read_text()
    pushes = "class Push(Message, frozen=True"
    after = before.replace(pushes, f'{pushes}, rename={{"samples": "weight"}}')
    assert after != before
    messages.write_text(after)
    return package.parent


def test_a_server_that_cannot_read_a_push_ends_the_job_with_both_versions_named(
    tmp_path: Path,
    scripted_master: Callable[..., ScriptedMaster],
    pods: Pods,
    tiny_job: Callable[..., TrainingJob],
) -> None:
    job = tiny_job(mode="async")
    uri = str(tmp_path / "manifest.json")
    write_manifest(build_manifest(job.spec.data), uri)
    master = scripted_master(job, uri, uri, 1)
    path = [str(other_code(tmp_path)), *filter(None, [os.environ.get("PYTHONPATH")])]
    pods.start(master, "ps-0", SERVER)
    master.add_shards("train", ROWS, 300)
    worker = pods.start(master, "worker-0", WORKER, PYTHONPATH=os.pathsep.join(path))
    assert worker.wait(600) == 2, pods.log("worker-0")
    (failure,) = master.failures
    assert not failure.retryable, "another worker of the same code would be refused, too"
    found = re.search(
        r"which runs elastrec (.*), refuses what this process, which runs elastrec (.*), sends", failure.reason
    )
    assert found is not None, failure.reason
    assert found[1] == code_version() != found[2]
    assert "samples" in failure.reason and "install the same version on every node" in failure.reason
