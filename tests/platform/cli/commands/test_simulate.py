"""`simulate` on small workloads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from matplotlib.axes import Axes

from elastrec.platform.cli.commands.simulate import simulate
from elastrec.platform.cli.commands.simulate_picture import png
from elastrec.platform.history.history import History
from elastrec.platform.history.records import JobRecord
from elastrec.platform.specs.errors import ElastrecError, ScalingError, SpecError
from tests.platform.jobs.what_if.test_past_jobs import record
from tests.platform.simulator.cluster import QUIET, job, run

LINES = "".join(f"job-{n},{60 * n},{900 + 60 * n},{1 + n % 4}\n" for n in range(8))


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "jobs.csv").write_text("job_id,arrival_seconds,seconds,workers\n" + LINES)
    path = tmp_path / "try.yaml"
    path.write_text("workload: {jobs: jobs.csv}\npolicies: [static, optimus, three-stage]\nchanges: everything\n")
    return str(path)


def called(*arguments: str) -> Result:
    result = CliRunner().invoke(simulate, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def test_policies_are_compared_and_marked_as_simulated(file: str) -> None:
    result = called(file)
    assert "simulated: 8 jobs on 20 nodes of 32 cores" in result.stdout
    for name in ("static", "optimus", "three-stage"):
        assert name in result.stdout
        assert f"{name}: 8 jobs simulated" in result.stderr
    assert "%" in result.stdout


def test_json_has_every_figure_and_every_job(file: str) -> None:
    found = json.loads(called(file, "--output", "json").stdout)
    assert found["simulated"] is True
    assert [each["policy"] for each in found["policies"]] == ["static", "optimus", "three-stage"]
    static, _, ours = found["policies"]
    assert len(static["completion_seconds"]) == 8
    assert ours["figures"]["completion_seconds_mean"] < static["figures"]["completion_seconds_mean"]


def test_equal_seeds_give_equal_output_and_options_go_before_the_file(file: str) -> None:
    one = called(file, "-p", "static", "--seed", "3", "--nodes", "2", "--output", "json").stdout
    assert one == called(file, "-p", "static", "--seed", "3", "--nodes", "2", "--output", "json").stdout
    assert one != called(file, "-p", "static", "--seed", "4", "--nodes", "2", "--output", "json").stdout
    assert json.loads(one)["asked"]["cluster"]["nodes"] == 2


def test_a_csv_file_alone_can_be_simulated(file: str) -> None:
    assert "8 jobs" in called(str(Path(file).with_name("jobs.csv")), "-p", "static").stdout


MINE = """
from elastrec.platform.scaling.policies.static import Static

class Mine(Static):
    name = "mine"
"""


def test_a_policy_in_a_file_is_compared_with_the_others(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(file).with_name("my_policy.py").write_text(MINE)
    monkeypatch.chdir(Path(file).parent)
    found = json.loads(called(file, "-p", "static", "-p", "my_policy.py:Mine", "--output", "json").stdout)
    static, mine = found["policies"]
    assert (static["policy"], mine["policy"]) == ("static", "mine")
    assert static["figures"] == mine["figures"]


def test_a_policys_file_is_relative_to_the_file_that_names_it(file: str) -> None:
    Path(file).with_name("my_policy.py").write_text(MINE)
    Path(file).write_text("workload: {jobs: jobs.csv}\npolicies: [my_policy.py:Mine]\n")
    assert "mine" in called(file).stdout


def test_two_policies_of_one_name_are_refused_before_anything_runs(file: str) -> None:
    policy = Path(file).with_name("my_policy.py")
    policy.write_text(MINE.replace('"mine"', '"static"'))
    with pytest.raises(ScalingError, match="its name 'static' is another one's too"):
        called(file, "-p", "static", "-p", f"{policy}:Mine")


def test_nodes_are_added_and_removed_as_in_a_file(file: str) -> None:
    Path(file).with_name("spot.csv").write_text("seconds,nodes\n600,-19\n4000,19\n")
    calm = json.loads(called(file, "-p", "static", "--output", "json").stdout)["policies"][0]["figures"]
    Path(file).write_text(Path(file).read_text() + "cluster: {node_changes: spot.csv}\n")
    hit = json.loads(called(file, "-p", "static", "--output", "json").stdout)["policies"][0]["figures"]
    assert hit["failures"] > calm["failures"]
    assert hit["makespan_seconds"] > calm["makespan_seconds"] > 0


def test_a_history_is_read_from_mlflow_and_what_is_left_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def job_records(self: History, wanted: None = None, limit: int = 0) -> list[JobRecord]:
        asked.append(limit)
        return [record("clicks-1"), record("clicks-2", workers=2), record("clicks-3", metrics={})]

    monkeypatch.setattr(History, "job_records", job_records)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    file = tmp_path / "what_if.yaml"
    file.write_text("workload: {history: {most: 7}}\npolicies: [static, three-stage]\n")
    result = called(str(file))
    assert asked == [7]
    assert "simulated: 2 jobs" in result.stdout
    assert "left out: clicks-3: its run has no samples trained" in result.stderr


def test_one_picture_is_drawn(file: str, tmp_path: Path) -> None:
    picture = tmp_path / "policies.png"
    assert f"written: {picture}" in called(file, "--picture", str(picture)).stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_jobs_that_cannot_run_are_named(file: str) -> None:
    result = called(file, "-p", "static", "--nodes", "1", "--output", "text")
    assert "did not end" not in result.stderr
    Path(file).with_name("jobs.csv").write_text("job_id,arrival_seconds,seconds,worker_cores\na,0,60,64\n")
    assert "static: 1 jobs did not end: a" in called(file, "-p", "static").stderr


def test_the_command_line_is_checked(file: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="every name once"):
        called(file, "-p", "static", "-p", "static")
    with pytest.raises(SpecError, match=r"a path that cannot be read \(No such file or directory\)"):
        called(str(tmp_path / "none.yaml"))
    with pytest.raises(ElastrecError, match="cannot be written"):
        called(file, "-p", "static", "--picture", "/dev/full")


def test_a_policy_that_ends_only_short_jobs_is_not_the_fastest(file: str, tmp_path: Path) -> None:
    # The longest of eight jobs takes 1,320 s with the requested sizes; half of them have ended after 20 minutes.
    Path(file).write_text("workload: {jobs: jobs.csv}\npolicies: [static]\nat_most: 20m\n")
    found = json.loads(called(file, "--output", "json").stdout)
    (static,) = found["policies"]
    assert 0 < static["figures"]["unfinished"] < 8
    for name in ("mean", "p90"):
        assert static["figures"][f"completion_seconds_{name}"] is None
    result = called(file, "--picture", str(tmp_path / "some.png"))
    assert "not ended" in result.stdout


def test_the_curve_of_ended_jobs_ends_at_their_share_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    curves = []
    real = Axes.step

    def step(axes: Axes, hours: list[float], shares: list[float], **given: Any) -> Any:
        curves.append(shares)
        return real(axes, hours, shares, **given)

    monkeypatch.setattr(Axes, "step", step)
    few = msgspec.structs.replace(QUIET, until_seconds=2000.0)
    report = run("static", [job("short", seconds=600.0), job("long")], given=few)
    assert png([report, report])[:4] == b"\x89PNG"
    assert curves == [[0.5], [0.5]]
