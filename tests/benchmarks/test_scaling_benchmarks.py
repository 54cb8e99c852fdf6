"""The code of the scaling benchmarks, on a few small problems."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable

import pytest

from benchmarks.common.figures import Figure
from benchmarks.scaling import candidates, selection, throughput_model
from benchmarks.simulator import memory_forecast
from tests.benchmarks.calling import benchmark

SMALL: dict[str, tuple[Callable[[Namespace], list[Figure]], Namespace]] = {
    "throughput_model": (throughput_model.measure, Namespace(seeds=2, problems=3)),
    "candidates": (candidates.measure, Namespace(problems=1)),
    "selection": (selection.measure, Namespace(instances=2, jobs=50, candidates=4, rounds=1)),
    "memory_forecast": (memory_forecast.measure, Namespace(jobs=8)),
}


@pytest.mark.parametrize("name", sorted(SMALL))
def test_every_figure_has_a_name_and_is_marked_if_simulated(name: str) -> None:
    measure, arguments = SMALL[name]
    figures = measure(arguments)
    assert all(figure.figure.startswith(f"{name}.") for figure in figures)
    assert len({figure.figure for figure in figures}) == len(figures)
    assert any(figure.goal for figure in figures)
    assert all(figure.simulated for figure in figures if "seconds" not in figure.figure)


def test_the_exact_choice_leaves_nothing_but_json_on_standard_output() -> None:
    ran = benchmark(
        "selection", "--instances", "12", "--jobs", "20", "--candidates", "3", "--rounds", "1", "--output", "json"
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert {each["figure"] for each in json.loads(ran.stdout)} >= {"selection.greedy_value.least"}
