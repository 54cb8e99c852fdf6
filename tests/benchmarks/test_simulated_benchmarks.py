"""The code of the simulated benchmarks, on a few small jobs."""

from __future__ import annotations

from argparse import ArgumentError, ArgumentParser, Namespace
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import msgspec
import numpy as np
import pytest

from benchmarks.common.figures import Figure
from benchmarks.common.headlines import (
    CHOSEN_ON,
    CORE_HOURS,
    HEADLINE_SEEDS,
    MEAN,
    SYMMETRIC,
    TRUTHS,
    Knowing,
    compared,
    run_all,
    steady_share,
)
from benchmarks.common.simulated_jobs import STATIC, TROUBLED, Side
from benchmarks.simulator import arrival_traces, data_executors, job_completion_time, memory_forecast, warm_start
from elastrec.platform.scaling.executors.horizontal import HorizontalPlan
from elastrec.platform.scaling.policies.static import Static
from elastrec.platform.scaling.policy import View
from elastrec.platform.scaling.types import CandidateKind, JobProfile, Proposal
from elastrec.platform.simulator.mixes import recurring
from elastrec.platform.specs.errors import ScalingError


def check(figures: list[Figure], name: str) -> None:
    assert figures
    assert all(figure.figure.startswith(f"{name}.") for figure in figures)
    assert len({figure.figure for figure in figures}) == len(figures)
    assert all(figure.simulated for figure in figures)
    assert any(figure.goal for figure in figures)


def small(**changed: object) -> Namespace:
    given = {"jobs": 4, "nodes": 80, "every": 300.0, "seeds": 2, "part": None, "picture": None}
    return Namespace(**{**given, **changed})


def test_no_headline_uses_a_seed_on_which_something_was_chosen() -> None:
    assert not set(CHOSEN_ON) & set(HEADLINE_SEEDS)
    assert len(set(HEADLINE_SEEDS)) >= 5


def test_owners_ask_for_too_much_as_often_as_for_too_little() -> None:
    jobs = [job for seed in HEADLINE_SEEDS for job in recurring(200, seed, SYMMETRIC)]
    knowing = [
        job
        for seed in HEADLINE_SEEDS
        for job in recurring(200, seed, msgspec.structs.replace(SYMMETRIC, asked_spread=0.0))
    ]
    pairs = list(zip(jobs, knowing, strict=True))
    more = sum(one.allocation.workers > other.allocation.workers for one, other in pairs)
    fewer = sum(one.allocation.workers < other.allocation.workers for one, other in pairs)
    assert 0.85 < more / fewer < 1.2


def test_single_jobs_are_compared_with_every_baseline() -> None:
    figures = job_completion_time.alone(seeds=1)
    check(figures, "job_completion_time")
    names = {figure.figure.rsplit(".", 1)[-1] for figure in figures}
    steps = {"against_optimus", "against_optimus_step_2", "against_optimus_step_4", "against_optimus_greedy"}
    assert names >= {*steps, "against_elastic_scheduler", "against_tuned"}


def test_a_mixed_workload_yields_every_goal_with_its_interval_and_a_picture(tmp_path: Path) -> None:
    picture = tmp_path / "mixed.png"
    figures = job_completion_time.measure(small(part=["mixed"], picture=str(picture)))
    check(figures, "job_completion_time")
    goals = {figure.figure.removeprefix("job_completion_time.mixed."): figure.goal for figure in figures if figure.goal}
    assert goals == {
        "three_stage_against_optimus_greedy.median": "≤ -10",
        "three_stage_against_optimus_greedy.core_hours": "≤ 0",
        "three_stage_warm_against_optimus_greedy_warm.median": "≤ -10",
        "three_stage_warm_against_optimus_greedy_warm.core_hours": "≤ 0",
        "three_stage_warm_against_optimus_greedy.median": "≤ -10",
        "three_stage_warm_against_optimus_greedy.core_hours": "≤ 0",
        "three_stage_warm_against_by_hand.median": "≤ -25",
        "three_stage_warm_against_by_hand.p90": "≤ -30",
        "three_stage.out_of_memory": "≤ 0.23",
        "three_stage_warm.out_of_memory": "≤ 0.23",
    }
    assert all("95_%_interval" in figure.settings for figure in figures if "_against_" in figure.figure)
    assert picture.exists()


def test_policies_are_judged_under_truths_that_are_not_their_model() -> None:
    figures = job_completion_time.measure(small(part=["truths"], jobs=3))
    check(figures, "job_completion_time")
    assert {figure.figure.split(".")[2] for figure in figures} == {"queues", "refined"}


def test_with_workers_alone_movable_ours_is_not_to_be_worse() -> None:
    figures = job_completion_time.measure(small(part=["workers"], jobs=3))
    check(figures, "job_completion_time")
    goals = {figure.figure.rsplit(".", 1)[-1] for figure in figures if figure.goal == "≤ 0"}
    assert goals == {"median", "mean", "core_hours"}


def test_every_case_of_the_sensitivity_has_its_cost() -> None:
    figures = job_completion_time.sensitivity(small(jobs=2))
    assert len({figure.figure for figure in figures}) == len(figures) == 13 * 3 * 2
    columns = {figure.figure.rsplit(".", 1)[-1] for figure in figures}
    against = ("static", "optimus", "optimus_greedy")
    assert columns == {f"{what}_against_{other}" for what in ("mean", "core_hours") for other in against}
    assert all(figure.compared and "95_%_interval" in figure.settings for figure in figures)


def test_every_case_of_the_arrivals_is_compared_with_every_step_of_optimus() -> None:
    figures = arrival_traces.measure(small(jobs=2, trace=None, only=["sensitivity"]))
    assert all(figure.compared and figure.simulated and "nodes" in figure.settings for figure in figures)
    cases = {figure.figure.removeprefix("arrival_traces.sensitivity.").rpartition(".")[0] for figure in figures}
    assert cases == {"as_it_is", "cluster_double", "start_and_pause_x3", "noise_0.2"}
    others = {figure.figure.partition("mean_against_")[2] for figure in figures} - {""}
    assert others == {"optimus", "optimus_step_2", "optimus_step_4", "optimus_greedy"}
    by_case = {case: [each.value for each in figures if f".{case}." in each.figure] for case in cases}
    assert all(by_case[case] != by_case["as_it_is"] for case in cases - {"as_it_is", "cluster_double"})


def test_a_side_that_does_not_end_is_not_compared() -> None:
    with pytest.raises(ScalingError, match=r"static: \d+ of 30 jobs did not end on 1 nodes"):
        run_all({101: recurring(30, 101, SYMMETRIC)}, 1, [STATIC])


def test_a_month_whose_jobs_do_not_all_end_has_no_figures() -> None:
    with pytest.raises(ScalingError, match=r"three_stage_warm: \d+ of 20 jobs did not end on 2 nodes"):
        warm_start.measure(Namespace(jobs=20, nodes=2, headroom=1.0))


def test_equal_sides_differ_by_nothing() -> None:
    jobs = {seed: recurring(3, seed) for seed in (101, 102)}
    reports = run_all(jobs, 80, [STATIC])
    figures = compared("it", reports, STATIC, STATIC, {MEAN: 0.0, CORE_HOURS: 0.0}, {})
    assert [figure.value for figure in figures] == [0.0] * 5
    assert [figure.met for figure in figures] == [None, None, True, True, None]


@pytest.mark.parametrize("truth", sorted(TRUTHS))
def test_jobs_that_never_change_do_not_rest_near_their_best_speed(truth: str, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = TRUTHS[truth](recurring(4, 101, msgspec.structs.replace(SYMMETRIC, asked_spread=1.0, headroom=3.0)))
    ours = steady_share("it", {101: jobs}, at_least=95.0, longer=3.0)
    monkeypatch.setattr("benchmarks.common.headlines.ThreeStage", Static)
    assert steady_share("it", {101: jobs}, at_least=95.0, longer=3.0).value < ours.value


def test_a_policy_that_knows_the_models_never_explores() -> None:
    jobs = recurring(3, 101, SYMMETRIC)
    kinds = set()

    class Watched(Knowing):
        def propose(self, job: JobProfile, view: View) -> Proposal:
            proposal = super().propose(job, view)
            kinds.update(each.kind for each in proposal.candidates)
            return proposal

    report = Side("knowing", Watched).run(jobs, 80, TROUBLED)
    assert not report.problems
    assert CandidateKind.EXPLORE not in kinds
    assert {CandidateKind.STAY, CandidateKind.SAVE} <= kinds


def test_a_warm_month_is_compared_with_a_cold_one() -> None:
    figures = warm_start.measure(Namespace(jobs=8, nodes=40, headroom=1.0))
    check(figures, "warm_start")
    assert figures[0].settings["seed"] in HEADLINE_SEEDS


def test_both_strategies_of_data_executors_are_measured() -> None:
    figures = data_executors.measure(Namespace(seeds=1, executors=5))
    check(figures, "data_executors")
    assert {figure.figure.split(".")[2] for figure in figures} >= {"needed_500", "noise_0", "needed_800"}


def test_too_few_executors_miss_a_goal_for_every_need(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(executors: int, *_: object) -> HorizontalPlan:
        return HorizontalPlan(before=executors, executors=executors, load=0.5, reason="")

    monkeypatch.setattr(data_executors, "scale_horizontally", never)
    missed = {figure.figure.split(".")[2] for figure in data_executors.horizontal(1) if figure.met is False}
    assert missed == {"steady", "needed_500", "needed_600", "needed_690", "needed_800"}


@pytest.mark.parametrize("noise", [0.05, 0.2])
def test_the_ideal_executor_lets_one_per_cent_of_its_work_wait(noise: float) -> None:
    wanted = np.exp(noise * np.random.default_rng(0).standard_normal(400_000))
    cores, share = data_executors.ideal(noise, used=1.0)
    assert np.maximum(wanted - cores, 0.0).sum() / wanted.sum() == pytest.approx(0.01, rel=0.03)
    assert share == pytest.approx(0.99 * wanted.mean() / cores, rel=0.01)


def test_goals_of_vertical_scaling_are_the_papers_unless_the_ideal_misses_them() -> None:
    for noise in (0.02, 0.05, 0.1):
        assert data_executors.goals(noise) == (6.5, 80.0)
    cores, share = data_executors.ideal(0.2)
    assert cores > 6.5
    assert data_executors.goals(0.2) == pytest.approx((cores / 0.9, 90.0 * share))


@pytest.mark.parametrize("module", [data_executors, job_completion_time, arrival_traces])
def test_more_seeds_than_there_are_headline_seeds_are_refused(module: ModuleType) -> None:
    parser = ArgumentParser(exit_on_error=False)
    module.add_options(parser)
    assert parser.parse_args(["--seeds", str(len(HEADLINE_SEEDS))]).seeds == len(HEADLINE_SEEDS)
    with pytest.raises(ArgumentError, match="--seeds"):
        parser.parse_args(["--seeds", str(len(HEADLINE_SEEDS) + 1)])


def test_jobs_whose_memory_is_short_are_forecast_too() -> None:
    figures = memory_forecast.measure(Namespace(jobs=8))
    check(figures, "memory_forecast")
    found = {figure.figure.removeprefix("memory_forecast.out_of_memory."): figure for figure in figures}
    assert found["short.by_hand"].value == 100.0
    assert found["short.forecast"].goal == "≤ 0.23"


def test_generated_arrivals_have_a_daily_pattern_and_bursts() -> None:
    arrivals = arrival_traces.bursty(4000, 101, 120.0)
    assert arrivals[0] == 0.0
    assert arrivals == sorted(arrivals)
    assert arrivals == arrival_traces.bursty(4000, 101, 120.0) != arrival_traces.bursty(4000, 102, 120.0)
    assert arrivals[-1] / 3999 == pytest.approx(120.0, rel=0.15)
    gaps = [after - before for before, after in pairwise(arrivals)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    # Of a Poisson process both are equal.
    assert deviation > 1.5 * mean


def test_a_window_of_a_trace_is_drawn_by_the_seed() -> None:
    trace = [float(10 * n) for n in range(100)]
    assert arrival_traces.window(trace, 3, 1) == [0.0, 10.0, 20.0]
    with pytest.raises(ValueError, match="100 arrivals; allowed: at least the 101"):
        arrival_traces.window(trace, 101, 1)


def test_a_trace_of_arrivals_yields_every_figure(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("job_id,submit_time\n" + "".join(f"{n},{2 * n}\n" for n in range(12)))
    figures = arrival_traces.measure(small(jobs=3, trace=str(trace), time_unit=60.0, speed=3, many=4, only=None))
    check(figures, "arrival_traces")
    assert {"speed.every_round", "speed.patient"} <= {
        figure.figure.removeprefix("arrival_traces.") for figure in figures
    }


def test_the_speed_is_that_of_a_whole_simulation_however_long_its_arrivals_take() -> None:
    days = 50 * 86_400.0
    figures = arrival_traces.measure(small(speed=3, many=4, every=days, only=["speed"]))
    names = {figure.figure.removeprefix("arrival_traces.speed.") for figure in figures}
    assert names == {"every_round", "patient", "many_jobs"}
    with pytest.raises(ScalingError, match=r"of 8 jobs did not end on 1 nodes, .*--nodes"):
        arrival_traces.measure(small(speed=20, many=4, nodes=1, only=["speed"]))
