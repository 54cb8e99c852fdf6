"""The plan of a campaign depends only on its seed, and contains every kind of fault."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.shape import field_name, named_fields
from tests.faults.campaign.injury import Scene
from tests.faults.campaign.plan import (
    CHANGES_PER_RUN,
    FAULTS_PER_RUN,
    MOST_PODS,
    PLACES,
    SHAPES,
    STAGE_VICTIMS,
    STAGES,
    TURNS,
    Fault,
    Kind,
    Victim,
    draw_run,
    has_plans,
)


@given(st.integers(0, 2**32), st.integers(0, 1000))
def test_equal_seeds_draw_equal_runs(seed: int, number: int) -> None:
    assert draw_run(seed, number) == draw_run(seed, number)
    assert draw_run(seed, number).strikes != draw_run(seed + 1, number).strikes


@given(st.integers(0, 2**32), st.integers(0, 1000))
def test_a_run_strikes_places_that_its_job_has_in_order_of_progress(seed: int, number: int) -> None:
    run = draw_run(seed, number)
    assert FAULTS_PER_RUN[0] <= len(run.faults) <= FAULTS_PER_RUN[1]
    assert [strike.at for strike in run.strikes] == sorted(strike.at for strike in run.strikes)
    assert all(1 <= len(strike.faults) <= 2 for strike in run.strikes)
    places = {Victim.WORKER: run.shape.workers, Victim.SERVER: run.shape.servers}
    assert all(fault.index < places.get(fault.victim, 1) for fault in run.faults)
    starved = [(f.victim, f.index) for f in run.faults if f.kind is Kind.OUT_OF_MEMORY]
    assert len(starved) == len(set(starved))


@given(st.integers(0, 2**32), st.integers(0, 1000))
def test_five_of_six_runs_have_plans_in_order_for_different_changes(seed: int, number: int) -> None:
    run = draw_run(seed, number)
    assert bool(run.plans) == has_plans(number)
    assert [plan.at for plan in run.plans] == sorted(plan.at for plan in run.plans)
    counts = {Role.PARAMETER_SERVER: run.shape.servers, Role.WORKER: run.shape.workers}
    for plan in run.plans:
        assert plan.change or plan.moved is not None
        for role, places in plan.change.items():
            if places.count is not None:
                assert places.count != counts[role] and 1 <= places.count <= MOST_PODS[role]
                counts[role] = places.count
    if run.plans:
        moments = {plan.at for plan in run.plans}
        assert CHANGES_PER_RUN[0] <= len(moments) <= CHANGES_PER_RUN[1]
        assert len(moments) == len([plan for plan in run.plans if plan.strike is not None])


def test_plans_include_every_kind_of_change_with_faults_in_every_stage() -> None:
    plans = [plan for number in range(60) for plan in draw_run(1, number).plans]
    named = {name for plan in plans for name in named_fields(plan.change)}
    fields = ("count", "cores", "memory_bytes")
    assert named == {field_name(role, field) for role in (Role.PARAMETER_SERVER, Role.WORKER) for field in fields}
    assert {plan.moved[0] for plan in plans if plan.moved} == {Role.PARAMETER_SERVER, Role.WORKER}
    strikes = [plan.strike for plan in plans if plan.strike is not None]
    assert {strike.stage for strike in strikes} == set(STAGES)
    assert {strike.fault.victim for strike in strikes} == set(STAGE_VICTIMS)
    assert {strike.fault.kind for strike in strikes} == {Kind.KILL, Kind.TERMINATE, Kind.STOP, Kind.CUT}
    assert any(before.at == after.at for before, after in pairwise(plans)), "no two plans come together"


@given(st.integers(0, 2**32))
def test_a_campaign_of_300_faults_kills_and_notifies_each_kind_of_process_in_each_stage(
    seed: int,
) -> None:
    runs, faults = [], 0
    while faults < 300:
        runs.append(draw_run(seed, len(runs)))
        faults += len(runs[-1].faults) + len({plan.at for plan in runs[-1].plans})
    strikes = [plan.strike for run in runs for plan in run.plans if plan.strike is not None]
    drawn = Counter((each.fault.kind, each.fault.victim, each.stage) for each in strikes)
    assert set(TURNS) == {
        (kind, victim, stage)
        for kind, victims in ((Kind.KILL, STAGE_VICTIMS), (Kind.TERMINATE, STAGE_VICTIMS[:4]))
        for victim in victims
        for stage in STAGES
    }
    assert min(drawn[turn] for turn in TURNS) >= 2
    # Of those that are nobody's turn.
    assert {kind for kind, _, _ in drawn} == {Kind.KILL, Kind.TERMINATE, Kind.STOP, Kind.CUT}


def test_faults_strike_while_servers_change_alone() -> None:
    plans = [plan for number in range(60) for plan in draw_run(1, number).plans if plan.strike is not None]
    for plan in plans:
        servers = plan.change.get(Role.PARAMETER_SERVER)
        is_moved = plan.moved is not None and plan.moved[0] is Role.PARAMETER_SERVER
        # Without the move of a server or another number of them, none might change.
        assert is_moved or (servers is not None and servers.count is not None)


def test_records_in_memory_and_deltas_meet_in_every_combination_and_under_plans() -> None:
    kinds = {(bool(run.memory_bytes), bool(run.deltas)) for run in (draw_run(1, n) for n in range(40)) if run.plans}
    assert len(kinds) == 4


def test_impossible_faults_are_not_drawn() -> None:
    kinds = (Kind.KILL, Kind.STOP)
    assert {fault.kind for number in range(50) for fault in draw_run(1, number, kinds).faults} == set(kinds)


def test_a_campaign_covers_every_kind_every_victim_and_every_shape() -> None:
    runs = [draw_run(1, number) for number in range(44)]
    faults = Counter((fault.kind, fault.victim) for run in runs for fault in run.faults)
    assert {run.shape for run in runs} == set(SHAPES)
    assert {kind for kind, _ in faults} == set(Kind) and {victim for _, victim in faults} == {
        *PLACES[Kind.KILL],
    }
    assert min(faults.values()) >= 3
    pairs = [strike for run in runs for strike in run.strikes if len(strike.faults) == 2]
    assert any(not strike.faults[1].delay_seconds for strike in pairs)
    assert any(strike.faults[1].delay_seconds for strike in pairs)


def test_the_shapes_mix_modes_workers_and_servers_evenly() -> None:
    assert len(set(SHAPES)) == 6 and all(shape.workers > 1 for shape in SHAPES)
    for pair in (("mode", "workers"), ("mode", "servers"), ("workers", "servers")):
        assert len({tuple(getattr(shape, name) for name in pair) for shape in SHAPES}) == 6


@pytest.mark.parametrize("victim", [victim for victim in Victim if victim is not Victim.AGENT])
def test_every_victim_has_a_place_before_its_name_is_known(victim: Victim, tmp_path: Path) -> None:
    scene = Scene(home=tmp_path, job_id="nobody", master_port=1)
    assert scene._candidates(Fault(Kind.KILL, victim, 0, 0.0, 0.0), (), is_patient=False) == []
