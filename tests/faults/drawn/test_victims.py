"""The process of a pod that a fault hits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from elastrec.platform.specs import environment
from tests.faults.campaign.injury import Scene
from tests.faults.campaign.plan import Fault, Kind, Victim

pytestmark = pytest.mark.services

JOB, POD = "job-1", "job-1-ps-0"
_PARENT = """
import subprocess, sys
command = [sys.executable, "-c", "print(1, flush=True); input()", "elastrec.helper"]
helper = subprocess.Popen(command, stdout=subprocess.PIPE)
helper.stdout.readline()
print(2, flush=True)
input()
"""


@pytest.mark.parametrize("pods", [(), (POD,)], ids=["by place", "by name"])
def test_a_server_is_hit_and_not_the_newer_process_that_it_has_started(tmp_path: Path, pods: tuple[str, ...]) -> None:
    variables = {**os.environ, environment.POD: POD, environment.WORK: str(tmp_path / "work")}
    command = [sys.executable, "-c", _PARENT, "elastrec.server"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=variables, text=True, **pipes) as server:
        assert server.stdout is not None
        server.stdout.readline()
        scene = Scene(home=tmp_path, job_id=JOB, master_port=1)
        hit = scene.process(Fault(Kind.KILL, Victim.SERVER, 0, 0.0, 0.0), pods)
        server.kill()
    assert hit is not None and hit.pid == server.pid
