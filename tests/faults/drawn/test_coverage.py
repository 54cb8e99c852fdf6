"""The table of faults names tests and kinds that exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.faults.campaign.coverage import RANDOM, TRIED, Tried
from tests.faults.campaign.job import HEARTBEAT_TIMEOUT_SECONDS, LEASE_SECONDS
from tests.faults.campaign.plan import PLACES, STAGE_PLACES, Kind, Victim, draw_run
from tests.faults.campaign.report import with_coverage
from tests.faults.test_campaign import NUMBERS, SEED

TESTS = Path(__file__).parents[2]


@pytest.mark.parametrize("tried", TRIED, ids=lambda tried: tried.fault)
def test_every_fault_of_the_table_is_tested_in_its_named_test(tried: Tried) -> None:
    assert tried.tests, "a fault that only a long campaign tries would go unseen in between"
    for named in tried.tests:
        file, _, function = named.partition("::")
        nodes = ast.parse((TESTS / file).read_text()).body
        defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        assert function in defined, f"{file} has no {function}"
    for kind, victim in tried.campaign:
        assert victim in PLACES[kind]
    for kind, victim in tried.changes:
        assert victim in STAGE_PLACES[kind]
    if RANDOM in tried.tests:
        drawn = {(fault.kind, fault.victim) for number in NUMBERS for fault in draw_run(SEED, number).faults}
        assert drawn >= set(tried.campaign), "the short campaign of the suite draws it"


def test_the_short_campaign_has_double_faults_and_faults_longer_than_a_lease() -> None:
    runs = [draw_run(SEED, number) for number in NUMBERS]
    assert any(len(strike.faults) == 2 for run in runs for strike in run.strikes)
    assert any(run.plans for run in runs)
    stops = [fault for run in runs for fault in run.faults if fault.kind is Kind.STOP]
    assert any(fault.seconds > LEASE_SECONDS and fault.victim is Victim.WORKER for fault in stops)
    assert all(fault.seconds > HEARTBEAT_TIMEOUT_SECONDS for fault in stops)


def test_the_table_names_everything_that_the_campaign_does() -> None:
    named = {pair for tried in TRIED for pair in tried.campaign}
    assert named == {(kind, victim) for kind, victims in PLACES.items() for victim in victims}
    of_changes = {pair for tried in TRIED for pair in tried.changes}
    assert of_changes == {(kind, victim) for kind, victims in STAGE_PLACES.items() for victim in victims}


def test_the_page_has_the_table() -> None:
    page = (TESTS.parent / "docs" / "fault_campaign.md").read_text()
    assert with_coverage(page) == page, "python -m tests.faults.campaign --coverage docs/fault_campaign.md"
