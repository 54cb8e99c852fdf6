"""A real master and real server processes: one of them fails at the beginning of the hand-over."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastrec.platform.master.machine import migration
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.transport.messages.observer import ChangeShape, ShapeAnswer, ShapeOutcome
from tests.platform.master.stage import Stage
from tests.shapes import change
from tests.trainers.parameter_server.migration.server_processes import Servers, stage_of

pytestmark = pytest.mark.services

OLD, NEW = "clicks-1-ps-0", "clicks-1-ps-1"


@pytest.fixture
def servers(tmp_path: Path) -> Servers:
    return Servers(tmp_path)


@pytest.fixture
def stage(tmp_path: Path, servers: Servers) -> Iterator[Stage]:
    with stage_of(tmp_path, servers) as made:
        yield made


@pytest.mark.parametrize(
    ("struck", "by", "rollbacks"),
    [(OLD, signal.SIGTERM, 0), (OLD, signal.SIGKILL, 1), (NEW, signal.SIGTERM, 0), (NEW, signal.SIGKILL, 1)],
    ids=["old-notice", "old-killed", "new-notice", "new-killed"],
)
def test_a_server_killed_in_the_cut_over_leaves_every_bucket_with_one_owner(
    stage: Stage, servers: Servers, monkeypatch: pytest.MonkeyPatch, struck: str, by: signal.Signals, rollbacks: int
) -> None:
    hand_over, strikes = migration._hand_over, list[str]()

    def hand_over_and_strike(*arguments: Any) -> None:
        hand_over(*arguments)
        if not strikes:
            servers.processes[struck].send_signal(by)
            strikes.append(struck)

    monkeypatch.setattr(migration, "_hand_over", hand_over_and_strike)
    stage.wait_for(Phase.TRAINING, 240)
    assert stage.call(ChangeShape(change=change(parameter_servers=2)), ShapeAnswer).accepted
    state = stage.service.state

    def has_settled() -> bool:
        owners = set(state.ownership.servers)
        is_left = bool(strikes) and struck not in owners and servers.processes[struck].poll() is not None
        return is_left and len(owners) == 2 and state.migration is None and state.phase is Phase.TRAINING

    stage.wait(has_settled, 200)
    assert strikes == [struck] and state.recovery.rollbacks == rollbacks
    assert state.shape_requests[0].outcome is ShapeOutcome.DONE
    assert sorted(state.ownership.owners) == [0] * 32 + [1] * 32 == sorted(state.ownership.dense_owners)
    serving = [name for name, process in servers.processes.items() if process.poll() is None]
    assert set(state.ownership.servers) <= set(serving)
