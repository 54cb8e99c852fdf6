"""The victims of faults during a change of servers."""

from __future__ import annotations

import pytest

from elastrec.platform.master.machine.migration import COPYING, STARTING
from elastrec.platform.specs.metrics import MigrationMetrics, Phase, PodMetrics, Role, TrainingMetrics
from tests.faults.campaign.plan import AFTER, Fault, Kind, StageStrike, Victim
from tests.faults.campaign.plans import victims


def metrics(*servers: str) -> TrainingMetrics:
    pods = tuple(PodMetrics(name=name, role=Role.PARAMETER_SERVER, state="Running") for name in servers)
    worker = PodMetrics(name="w", role=Role.WORKER, state="Running")
    return TrainingMetrics(job="j", phase=Phase.TRAINING, pods=(*pods, worker))


def hit(victim: Victim, stage: str, joining: str, leaving: str, *servers: str) -> list[str]:
    change = MigrationMetrics(stage=stage, joining=tuple(joining.split()), leaving=tuple(leaving.split()))
    return victims(StageStrike(stage, Fault(Kind.KILL, victim, 0, 0.0, 0.0)), change, metrics(*servers))


@pytest.mark.parametrize("stage", [STARTING, COPYING])
def test_the_old_server_leaves_and_the_new_one_joins(stage: str) -> None:
    assert hit(Victim.OLD_SERVER, stage, "c", "a", "a", "b", "c") == ["a"]
    assert hit(Victim.NEW_SERVER, stage, "c", "a", "a", "b", "c") == ["c"]


def test_where_no_server_leaves_or_joins_those_are_hit_that_give_or_take() -> None:
    assert hit(Victim.OLD_SERVER, COPYING, "c", "", "a", "b", "c") == ["a", "b"]
    assert hit(Victim.NEW_SERVER, COPYING, "", "c", "a", "b", "c") == ["a", "b"]


def test_after_a_change_the_old_server_is_one_that_has_remained() -> None:
    assert hit(Victim.OLD_SERVER, AFTER, "c", "a", "b", "c") == ["b"]
    assert hit(Victim.OLD_SERVER, AFTER, "c", "a", "c") == ["a"]
    assert hit(Victim.NEW_SERVER, AFTER, "c", "a", "b", "c") == ["c"]


@pytest.mark.parametrize("victim", [Victim.WORKER, Victim.MASTER, Victim.AGENT])
def test_others_are_hit_in_their_place(victim: Victim) -> None:
    assert hit(victim, COPYING, "c", "a", "a", "c") == []
