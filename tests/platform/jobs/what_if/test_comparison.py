from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elastrec.platform.jobs.what_if.comparison import compare, gather, settings_of
from elastrec.platform.jobs.what_if.simulation_file import SimulationFile, load_simulation
from elastrec.platform.scaling.amounts import Change
from elastrec.platform.scaling.types import Overheads
from elastrec.platform.simulator.settings import Handling
from elastrec.platform.specs.errors import ScalingError, SpecError
from elastrec.platform.specs.text.loading import validate
from tests.platform.jobs.what_if.test_past_jobs import record

HERE = Path()


def asked(**content: Any) -> SimulationFile:
    return validate(SimulationFile, {"workload": {"made_up": {"jobs": 12, "models": 4}}, **content})


def test_every_policy_gets_the_same_jobs_and_reports_progress() -> None:
    calls: list[tuple[str, int, int]] = []
    given = asked(policies=["by-hand", "static", "optimus"])
    reports = compare(given, gather(given, HERE), lambda *progress: calls.append(progress))
    assert [each.policy for each in reports] == ["by-hand", "static", "optimus"]
    assert {job.job_id for job in reports[0].jobs} == {job.job_id for job in reports[2].jobs}
    assert calls[:3] == [("by-hand", 0, 12), ("static", 0, 12), ("optimus", 0, 12)]
    assert calls[3 + 11] == ("by-hand", 12, 12)
    assert len(calls) == 3 + 36


def test_plans_change_workers_alone_unless_everything_may_change() -> None:
    workers, everything = (gather(asked(changes=each), HERE).jobs for each in ("workers", "everything"))
    assert {each.movable for each in workers} == {frozenset({Change.WORKERS})}
    assert {each.movable for each in everything} == {frozenset(Change)}


def test_warm_start_is_for_all_but_by_hand() -> None:
    made_up = {"jobs": 12, "models": 2, "mean_time_between_jobs": "30m"}
    given = asked(policies=["by-hand", "static"], warm_start=True, workload={"made_up": made_up})
    by_hand, static = compare(given, gather(given, HERE))
    wanted = {job.job_id: job.allocation for job in gather(given, HERE).jobs}
    assert all(each.started_with == wanted[each.job_id] for each in by_hand.jobs)
    assert any(each.started_with != wanted[each.job_id] for each in static.jobs)


def test_jobs_release_more_if_they_may_become_slower() -> None:
    core_hours = []
    for share in (0.0, 0.5):
        given = asked(policies=["three-stage"], changes="everything", max_slowdown=share)
        (report,) = compare(given, gather(given, HERE))
        core_hours.append(report.figures()["core_hours"])
    assert core_hours[1] < core_hours[0]


def test_a_simulation_uses_the_patience_of_its_file() -> None:
    assert settings_of(asked(patience_rounds=3), None, Handling()).patience_rounds == 3


MEASURED = Overheads(worker_start_seconds=5.0, worker_start_core_seconds=4.0, server_start_core_seconds=2.0, measured=2)


def test_a_history_has_its_own_starts_and_pauses() -> None:
    given = asked(workload={"history": {}})
    found = gather(given, HERE, [record("a"), record("b", workers=2)], MEASURED)
    assert len(found.jobs) == 2
    settings = settings_of(given, found.overheads, Handling())
    assert settings.start_seconds == 5.0
    assert (settings.worker_start_core_seconds, settings.server_start_core_seconds) == (4.0, 2.0)
    fixed = asked(workload={"history": {}}, trouble={"start_time": "20s"})
    assert settings_of(fixed, found.overheads, Handling()).start_seconds == 20.0


def test_a_history_without_a_finished_job_is_refused_with_the_reasons() -> None:
    given = asked(workload={"history": {}})
    with pytest.raises(SpecError, match="has no job"):
        gather(given, HERE, [])
    with pytest.raises(SpecError, match="clicks-1: its run has no samples trained"):
        gather(given, HERE, [record(metrics={})])


def test_a_policy_that_does_not_exist_is_refused_before_anything_runs() -> None:
    given = asked(policies=["by-hand", "no-such"])
    calls: list[str] = []
    with pytest.raises(ScalingError, match="no-such"):
        compare(given, gather(given, HERE), lambda name, *_: calls.append(name))
    assert not calls


def test_csv_files_are_found_beside_the_yaml_file(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("job_id,arrival_seconds,seconds\na,2,1\nb,4,1\nc,5,1\n")
    given = asked(workload={"jobs": "jobs.csv", "time_unit": "1m"})
    assert [each.arrival_seconds for each in gather(given, tmp_path).jobs] == [120.0, 240.0, 300.0]
    made_up = asked(workload={"made_up": {"jobs": 3, "arrivals": "jobs.csv"}, "time_unit": "1h"})
    assert [each.arrival_seconds for each in gather(made_up, tmp_path).jobs] == [0.0, 7200.0, 10800.0]


@pytest.mark.parametrize(
    "content, expected",
    [
        ({"workload": {}}, "exactly one of jobs, history and made_up"),
        ({"workload": {"jobs": "a.csv", "made_up": {}}}, "found jobs and made_up"),
        ({"cluster": {"nodes": 0}}, "cluster.nodes"),
        ({"policies": []}, "policies"),
        ({"policies": ["static", "static"]}, "every one only once"),
        ({"trouble": {"stragglers": 1.5}}, "trouble.stragglers"),
        ({"polices": ["static"]}, "polices"),
        ({"changes": "servers"}, "changes"),
    ],
)
def test_a_wrong_field_of_the_file_is_named(content: dict[str, Any], expected: str) -> None:
    with pytest.raises(SpecError, match=expected):
        asked(**content)


def test_a_csv_file_alone_is_a_workload(tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text("job_id,arrival_seconds,seconds\na,0,60\n")
    given = load_simulation(file)
    assert gather(given, file.parent).jobs[0].job_id == "a"


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"\(No such file or directory\) is not allowed; allowed: a YAML or CSV file"):
        load_simulation(tmp_path / "none.yaml")
