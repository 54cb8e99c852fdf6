"""Figures of the benchmark of six jobs, from given results; no job is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.jobs import live_mix
from benchmarks.jobs.live_mix import OWNERS, Logs, Side, job_content
from elastrec.platform.data.generating.generator import GenerateSpec, generate
from elastrec.platform.specs.job import JobSpec, TrainingJob


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Logs:
    folder: Path = tmp_path_factory.mktemp("data")
    log = generate(GenerateSpec(path=str(folder), rows_per_day=1_000, days=2, dense=2, sparse=3, lists=0))
    return Logs(log, log)


@pytest.mark.parametrize("owner", OWNERS, ids=lambda owner: owner.name)
def test_the_sides_differ_in_nothing_but_scaling(logs: Logs, owner: live_mix.Owner) -> None:
    def spec(side: str) -> JobSpec:
        return TrainingJob.model_validate(job_content(owner, logs, side, 2)).spec

    ours = spec("three_stage")
    assert ours.scaling.enabled
    for side in ("static", "by_hand"):
        other = spec(side)
        assert not other.scaling.enabled and other.model_copy(update={"scaling": ours.scaling}) == ours
        assert other.scaling.start == ours.scaling.start == "job_file"


def test_a_server_that_was_killed_has_a_larger_successor_but_not_by_hand(logs: Logs) -> None:
    (short,) = [owner for owner in OWNERS if owner.name == "half-memory"]

    def most(side: str) -> int | None:
        spec = TrainingJob.model_validate(job_content(short, logs, side, 2)).spec
        return spec.scaling.maximum_parameter_server_memory

    assert most("by_hand") == short.server_bytes
    assert most("static") == most("three_stage") and most("static") >= 2 * short.server_bytes


def test_owners_request_too_little_the_right_size_and_too_much() -> None:
    assert [owner.workers for owner in OWNERS if not owner.grows] == [1, 4, 2]
    memory = sorted(owner.server_bytes for owner in OWNERS if owner.grows)
    assert memory == [memory[1] // 2, memory[1], 2 * memory[1]]


def test_a_figure_compares_rounds_side_by_side_and_any_kill_with_plans_misses_the_goal() -> None:
    def side(seconds: float, kills: int) -> Side:
        return Side(seconds={"a": seconds, "b": 3 * seconds}, core_seconds=10 * seconds, kills=kills, plans=2)

    sides = {"three_stage": [side(50.0, 1)], "static": [side(100.0, 2)], "by_hand": [side(40.0, 0)]}
    figures = {each.figure: each for each in live_mix.figures_of(sides, 1.0)}
    assert figures["live_mix.mean_seconds_to_static"].value == pytest.approx(0.5)
    assert figures["live_mix.core_seconds_to_static"].met
    assert figures["live_mix.longest_seconds_to_by_hand"].value == pytest.approx(1.25)
    assert not figures["live_mix.mean_seconds_to_by_hand"].met
    assert not figures["live_mix.three_stage.kills"].met and figures["live_mix.static.kills"].met is None
