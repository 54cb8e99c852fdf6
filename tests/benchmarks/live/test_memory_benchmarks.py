"""Figures of the benchmarks of growing tables, from given results; no job is run."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from benchmarks.jobs import growing_tables, out_of_memory
from benchmarks.jobs.growing_tables import MOST_SERVER_BYTES, SERVER_BYTES, Run, job_content, kills_of
from elastrec.platform.data.generating.generator import GenerateReport, GenerateSpec, generate
from elastrec.platform.scaling.amounts import Allocation
from elastrec.platform.scaling.types import MemoryCurve, Plan
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.transport.messages.ledger import Explanation, OwnPlan, TimelineEntry


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> GenerateReport:
    folder = tmp_path_factory.mktemp("data") / "clicks"
    return generate(GenerateSpec(path=str(folder), rows_per_day=1_000, days=2, dense=2, sparse=3, lists=0))


def story(*entries: tuple[str, str]) -> Explanation:
    timeline = [TimelineEntry(seconds=1.0, unix_seconds=1.0, what=what, cause=cause) for what, cause in entries]
    return Explanation(job="j", phase="Training", wall_seconds=1.0, parts={}, goodput=0.0, timeline=timeline)


def test_a_kill_for_memory_counts_once_and_other_losses_do_not() -> None:
    ended = "ended (OutOfMemory)"
    killed = [
        ("lost j-ps-1, replaced by j-ps-1-r1", ended),
        ("rolled back to s3://x, generation 1", f"j-ps-1: {ended}"),
    ]
    assert kills_of(story(*killed)) == 1
    assert kills_of(story(("lost j-ps-1, replaced by j-ps-1-r1", "ended with exit code 1 (Error)"))) == 0


def test_the_two_jobs_differ_in_nothing_but_whether_they_are_scaled(log: GenerateReport) -> None:
    one, other = (TrainingJob.model_validate(job_content(log, forecast=forecast)) for forecast in (True, False))
    assert one.spec.scaling.enabled and not other.spec.scaling.enabled
    scaled = other.spec.scaling.model_copy(update={"enabled": True})
    assert other.spec.model_copy(update={"scaling": scaled}) == one.spec
    server = one.spec.resources.parameter_server
    assert server.memory == SERVER_BYTES and one.spec.scaling.maximum_parameter_server_memory == MOST_SERVER_BYTES


def test_a_job_restarted_by_hand_continues_from_its_record_with_more_memory(log: GenerateReport) -> None:
    content = job_content(log, forecast=False, server_bytes=2 * SERVER_BYTES, start_from="file:///records/7")
    spec = TrainingJob.model_validate(content).spec
    assert (spec.resources.parameter_server.memory, spec.continual.start_from) == (
        2 * SERVER_BYTES,
        "file:///records/7",
    )


def figures(with_forecast: list[Run], by_master: list[Run], without: list[Run]) -> dict[str, Any]:
    return {each.figure: each for each in growing_tables.figures_of(with_forecast, by_master, without)}


def test_kills_of_all_rounds_count_and_a_round_without_kills_proves_nothing() -> None:
    calm, killed = Run(seconds=9.0, fullest=0.8, fullest_at_plan=0.6), Run(seconds=12.0, kills=1, fullest=1.0)
    good = figures([calm, calm], [calm, calm], [killed, killed])
    assert all(each.met is not False for each in good.values())
    assert good["growing_tables.fullest_at_plan"].value == 0.6
    bad = figures([calm, killed], [killed, calm], [killed, calm])
    missed = {name for name, each in bad.items() if each.met is False}
    names = ("kills", "kills_without_rounds", "kills_without_forecast", "fullest_at_plan")
    assert missed == {f"growing_tables.{name}" for name in names}


def test_the_fill_of_servers_at_a_decision_is_the_masters_measurement() -> None:
    before = Allocation(
        workers=1, parameter_servers=2, worker_cores=1.0, parameter_server_cores=1.0, worker_memory_bytes=100,
        parameter_server_memory_bytes=200,
    )  # fmt: skip
    curve = MemoryCurve(samples=(1.0, 2.0), low=(90.0,) * 2, likely=(100.0, 300.0), high=(110.0,) * 2, safe_bytes=180.0)
    plan = Plan(job_id="j", policy="memory-forecast", before=before, allocation=before, reason="", memory=curve)
    own = OwnPlan(unix_seconds=1.0, samples=1, plan_json=msgspec.json.encode(plan))
    assert growing_tables.fullest_at(own) == 0.5


def test_completion_times_are_compared_round_by_round() -> None:
    def runs(*seconds: float) -> list[Run]:
        return [Run(seconds=each) for each in seconds]

    found = {
        each.figure: each
        for each in out_of_memory.figures_of(
            {"forecast": runs(6.0, 12.0), "doubled": runs(10.0, 20.0), "by_hand": runs(8.0, 16.0)}
        )
    }
    assert found["out_of_memory.against_doubled"].value == pytest.approx(0.6)
    assert found["out_of_memory.against_doubled"].met
    assert (found["out_of_memory.against_doubled"].goal, found["out_of_memory.against_by_hand"].goal) == (
        "≤ 1",
        "≤ 0.724",
    )
    assert found["out_of_memory.against_by_hand"].value == pytest.approx(0.75)
    assert found["out_of_memory.against_by_hand"].met is False
    assert found["out_of_memory.by_hand.seconds"].value == 12.0
