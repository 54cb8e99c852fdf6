"""The agent is interrupted between two of its steps: what it had begun is finished or undone by the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elastrec.platform.clusters.local.agent.journal import Journal
from elastrec.platform.clusters.local.agent.service import NodeAgent
from elastrec.platform.clusters.local.processes.limits import ThreadLimits
from elastrec.platform.clusters.pods import PodPhase, PodSize
from elastrec.platform.specs.errors import ClusterError
from tests.processes import wait_for

pytestmark = pytest.mark.services


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[[], NodeAgent]]:
    """Closes the last agent, if there is one, and starts the next one in the same folder."""
    agents: list[NodeAgent] = []

    def start() -> NodeAgent:
        if agents:
            agents.pop().close()
        agents.append(
            NodeAgent(tmp_path, Journal(tmp_path / "journal.sqlite"), ThreadLimits(), PodSize(2.0, 1 << 30), "node", {})
        )
        agents[0].start()
        return agents[0]

    yield start
    agents.pop().close()


def crash() -> None:
    """Ends the thread."""
    raise SystemExit


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_deletion_that_was_interrupted_before_it_was_journalled_is_finished(
    begin: Callable[[], NodeAgent], make_pod: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    agent = begin()
    pod = make_pod("import time; time.sleep(1000)")
    agent.create(pod)
    wait_for(lambda: agent.pods(pod.name, None)[0].phase is PodPhase.RUNNING, 20, "a running pod")
    with monkeypatch.context() as patched:
        write = Journal.write
        patched.setattr(
            Journal, "write", lambda self, record, event: crash() if record is None else write(self, record, event)
        )
        agent.delete(pod.name, grace_seconds=1.0, wait=False)
        wait_for(lambda: not agent._running, 20, "the end of its process")
    again = begin()
    wait_for(lambda: not again.pods(None, None), 20, "the end of the deletion")
    assert [path.name for path in (tmp_path / "pods").iterdir()] == ["trash"]


def test_a_pod_that_has_ended_stays_if_its_replacement_cannot_be_created(
    begin: Callable[[], NodeAgent], make_pod: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = begin()
    pod = make_pod("raise SystemExit(3)")
    agent.create(pod)
    wait_for(lambda: agent.pods(pod.name, None)[0].phase.is_final, 20, "an ended pod")

    def is_full(uid: str, files: object) -> None:
        raise ClusterError("the disk is full", retryable=True)

    monkeypatch.setattr(agent._runner, "prepare", is_full)
    with pytest.raises(ClusterError, match="the disk is full"):
        agent.create(pod, replaces_ended=True)
    (found,) = agent.pods(pod.name, None)
    assert found.exit_code == 3
