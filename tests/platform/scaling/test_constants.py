"""Constants of decisions: each is defined once, with its meaning and source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from elastrec.platform.jobs.what_if.simulation_file import SimulationFile, Trouble
from elastrec.platform.master.measuring import monitor
from elastrec.platform.scaling import amounts, memory_watch, warm_start
from elastrec.platform.scaling.across_jobs.selection import Weights
from elastrec.platform.scaling.executors.strategy import StrategySettings
from elastrec.platform.scaling.executors.vertical import VerticalSettings
from elastrec.platform.scaling.search.objectives import Rules
from elastrec.platform.scaling.types import Overheads
from elastrec.platform.simulator import running
from elastrec.platform.simulator.settings import Settings
from elastrec.platform.specs import metrics
from elastrec.platform.specs.scaling import ScalingSettings

ROOM = Path(amounts.__file__).parent


def bare(source: str) -> list[str]:
    """Names of numbers at the top of a module with no text below them."""
    body = ast.parse(source).body
    found = []
    for statement, follower in zip(body, [*body[1:], None], strict=True):
        if not isinstance(statement, ast.Assign) or not _is_number(statement.value):
            continue
        is_text = isinstance(follower, ast.Expr) and isinstance(follower.value, ast.Constant)
        names = [name.id for target in statement.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        found += [] if is_text else names
    return found


def _is_number(value: ast.expr) -> bool:
    """Whether it holds a number of one's own: not an index, and not what another constant is made into."""
    numbers = [node.value for node in ast.walk(value) if isinstance(node, ast.Constant)]
    parts = (ast.Constant, ast.Tuple, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context)
    is_plain = all(isinstance(node, parts) for node in ast.walk(value))
    return is_plain and any(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers)


@pytest.mark.parametrize("file", sorted(ROOM.rglob("*.py")), ids=lambda file: str(file.relative_to(ROOM)))
def test_every_number_of_a_decision_has_a_unit(file: Path) -> None:
    assert not bare(file.read_text())


def test_a_number_without_a_text_is_found() -> None:
    assert bare('ONE = 1\n"""What it is."""\nTWO, THREE = 2, 2**3\nfour = int("4")\n') == ["TWO", "THREE"]


def test_live_and_simulated_jobs_have_the_same_default_rules() -> None:
    team, rules, strategy = ScalingSettings(), Rules(), StrategySettings()
    assert (rules.max_slowdown, rules.grow_efficiency) == (team.max_slowdown, team.grow_efficiency)
    assert (rules.save_efficiency, rules.payback_seconds) == (team.save_efficiency, team.payback)
    assert (strategy.cool_down_seconds, strategy.reversal_seconds) == (team.cool_down, team.no_reversal)
    assert Weights().rho == team.rho
    simulated = SimulationFile.model_validate({"workload": {"jobs": "jobs.csv"}})
    assert (simulated.max_slowdown, simulated.prices) == (team.max_slowdown, team.prices)
    assert simulated.round_interval == Settings().interval_seconds == team.round_interval
    assert Trouble().noise == Settings().noise
    assert Settings().start_seconds == Overheads().worker_start_seconds == Overheads().server_start_seconds
    for name in ("migration_pause_seconds", "worker_start_core_seconds", "server_start_core_seconds"):
        assert getattr(Settings(), name) == getattr(Overheads(), name)


def test_the_steps_of_a_start_divide_those_of_plans() -> None:
    assert amounts.MEMORY_STEP % warm_start._MEMORY_STEP == 0
    assert VerticalSettings().step == amounts.CORES_STEP


def test_a_memory_forecast_does_not_hide_the_steps_of_a_simulated_job() -> None:
    assert memory_watch.LEAST_SECONDS == monitor.WINDOW_SECONDS == metrics.WINDOW_SECONDS
    assert 0 < running._LEAST_MEASURED_SECONDS < memory_watch.LEAST_SECONDS
