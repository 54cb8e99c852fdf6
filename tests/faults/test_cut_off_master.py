"""A master loses the connection to all pods and to the cluster in each stage of a change of servers. Needs root."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from elastrec.platform.master.machine import migration
from elastrec.platform.master.machine.migration import COPYING, HANDING_OVER, STARTING
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.transport.messages.observer import ChangeShape, ShapeAnswer, ShapeOutcome
from tests.faults.campaign.sockets import cut
from tests.platform.master.fakes import job
from tests.platform.master.stage import Stage
from tests.shapes import change

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a cut of sockets in the kernel needs root")
ROWS = 2000


class Cable:
    """Between the master and everybody else: pulled out at the moment at which a change enters a stage."""

    def __init__(self, s: Stage, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._s, self._stage = s, stage
        self._cut = contextlib.ExitStack()
        self.is_pulled = threading.Event()
        begin, enter = migration._begin, migration._enter

        def begin_and_pull(*arguments: Any) -> None:
            begin(*arguments)
            self._entered(STARTING)

        def enter_and_pull(state: Any, change: migration.Migration, entered: str) -> None:
            enter(state, change, entered)
            self._entered(entered)

        monkeypatch.setattr(migration, "_begin", begin_and_pull)
        monkeypatch.setattr(migration, "_enter", enter_and_pull)

    def _entered(self, stage: str) -> None:
        if stage == self._stage and not self.is_pulled.is_set():
            here = psutil.Process()
            self._s.cluster.before = self._unreachable
            self._cut.enter_context(cut(here, [here]))
            self.is_pulled.set()

    def _unreachable(self, operation: str, name: str) -> None:
        raise ClusterError(f"{operation} {name}: the cluster cannot be reached", retryable=True)

    def put_back(self) -> None:
        self._s.cluster.before = lambda operation, name: None
        self._cut.close()


@contextlib.contextmanager
def changing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, silence_seconds: float) -> Any:
    """A job of two servers that is asked for a third, cut off in this stage; until it has succeeded."""
    faults = {"heartbeat_interval": 0.02, "heartbeat_timeout": silence_seconds, "lease": 2 * silence_seconds}
    s = Stage(tmp_path, job(faults=faults), rows=ROWS, step_seconds=0.02)
    s.is_far, cable = True, Cable(s, stage, monkeypatch)
    s.start()
    try:
        s.wait(lambda: s.service.state.training.done > 20)
        asking = threading.Thread(
            target=lambda: s.call(ChangeShape(change=change(parameter_servers=3)), ShapeAnswer, 60.0)
        )
        asking.start()
        s.wait(cable.is_pulled.is_set)
        yield s
        cable.put_back()
        asking.join(60)
        s.wait_for(Phase.SUCCEEDED)
    finally:
        cable.put_back()
        s.close()


def check_owners(s: Stage) -> None:
    """Three servers that were started own an equal share of the buckets, each of which has one owner."""
    ownership = s.service.state.ownership
    assert len(ownership.servers) == 3 and set(ownership.servers) <= set(s.pods)
    assert sorted(Counter(ownership.owners).values()) == [21, 21, 22]
    assert [request.outcome for request in s.service.state.shape_requests] == [ShapeOutcome.DONE]


@pytest.mark.parametrize("stage", [STARTING, COPYING, HANDING_OVER])
def test_a_change_continues_after_a_silence_shorter_than_the_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    with changing(tmp_path, monkeypatch, stage, silence_seconds=30.0) as s:
        time.sleep(1.0)
        assert s.service.state.migration is not None and s.service.state.migration.stage == stage
    state = s.service.state
    assert state.recovery.rollbacks == 0 and not state.membership.losses
    assert s.rows_trained() == [1] * ROWS
    check_owners(s)


@pytest.mark.parametrize("stage", [STARTING, COPYING, HANDING_OVER])
def test_a_master_that_lost_all_pods_completes_the_change_with_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    with changing(tmp_path, monkeypatch, stage, silence_seconds=1.5) as s:
        before = set(s.pods)
        s.wait(
            lambda: (
                not before
                & {member.name for member in s.service.state.membership.members.values() if member.is_registered}
            )
        )
    state = s.service.state
    assert state.recovery.rollbacks >= 1
    # All of the pods before have been ordered to end, and what they had trained is trained again.
    assert s.rows_trained(state.phases.generation) == [1] * ROWS
    assert not before & set(state.ownership.servers)
    check_owners(s)
