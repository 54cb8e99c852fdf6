from __future__ import annotations

from pathlib import Path

import pytest

from elastrec.platform.jobs.what_if.job_table import read_jobs, read_node_changes
from elastrec.platform.simulator.node_changes import NodeChange
from elastrec.platform.specs.errors import SpecError
from tests.platform.simulator.cluster import run

HEADER = "job_id,arrival_seconds,seconds,workers,worker_cores,memory_at_end,priority,team\n"


def written(folder: Path, text: str) -> Path:
    file = folder / "jobs.csv"
    file.write_text(text)
    return file


def problems(file: Path) -> str:
    with pytest.raises(SpecError) as caught:
        read_jobs(file)
    return str(caught.value)


def test_a_job_of_the_table_trains_for_its_given_time(tmp_path: Path) -> None:
    table = read_jobs(written(tmp_path, HEADER + "late,600,1200,4,2,,,\nearly,0,600,2,1,0.5,2,ads\n"))
    early, late = table.jobs
    assert (early.job_id, early.priority, early.team, early.allocation.worker_cores) == ("early", 2.0, "ads", 1.0)
    assert late.memory is None
    assert early.memory is not None
    assert early.memory.server_bytes(1, early.samples) == pytest.approx(
        0.5 * 0.95 * early.allocation.parameter_server_memory_bytes + early.memory.server_base_bytes
    )
    ended = {each.job_id: each for each in run("static", table.jobs).jobs}
    assert ended["early"].ended_seconds == pytest.approx(60 + 600)
    assert ended["late"].ended_seconds == pytest.approx(600 + 60 + 1200)


def test_the_columns_of_a_trace_are_understood_and_counted_in_its_unit(tmp_path: Path) -> None:
    trace = "job_id,user,num_gpu,submit_time,iterations,duration\n7,vc1,8,30,5049,90\n8,vc1,1,10,100,5\n"
    first, second = read_jobs(written(tmp_path, trace), time_unit_seconds=60.0).jobs
    assert (first.job_id, first.arrival_seconds) == ("8", 600.0)
    assert (second.allocation.workers, second.allocation.parameter_servers, second.team) == (8, 2, "vc1")
    assert second.samples / second.samples_per_second(second.allocation) == pytest.approx(90 * 60)


@pytest.mark.parametrize(
    "line, expected",
    [
        ("a,zero,60,,,,,", "line 2, arrival_seconds: 'zero' is not allowed; allowed: a number of at least 0"),
        ("a,-1,60,,,,,", "line 2, arrival_seconds: '-1'"),
        ("a,0,0,,,,,", "line 2, seconds: '0' is not allowed; allowed: a number above 0"),
        ("a,0,nan,,,,,", "line 2, seconds: 'nan'"),
        ("a,0,60,2.5,,,,", "line 2, workers: '2.5' is not allowed; allowed: a whole number of at least 1"),
        ("a,0,60,0,,,,", "line 2, workers: '0'"),
        (",0,60,,,,,", "line 2, job_id"),
        ("a,0,60,,-4,,,", "line 2, worker_cores: '-4'"),
        ("a,0,60,,,,low,", "line 2, priority: 'low'"),
        ("a,0", "line 2, seconds: ''"),
    ],
)
def test_every_wrong_field_is_named_with_its_line(tmp_path: Path, line: str, expected: str) -> None:
    assert expected in problems(written(tmp_path, HEADER + line + "\n"))


def test_all_problems_are_shown_together_up_to_a_limit(tmp_path: Path) -> None:
    message = problems(written(tmp_path, HEADER + "a,0,60,,,,,\n" * 2 + "b,x,y,z,,,,\n" * 30))
    assert "line 3, job_id: 'a' is not allowed; allowed: a name that no line before has" in message
    assert "more problems" in message
    assert message.count("line ") <= 22


def test_wrong_lines_can_be_left_out_and_are_named(tmp_path: Path) -> None:
    table = read_jobs(written(tmp_path, HEADER + "a,0,60,,,,,\nb,0,-5,,,,,\n"), skip_wrong_lines=True)
    assert [each.job_id for each in table.jobs] == ["a"]
    assert "line 3, seconds" in table.skipped[0]


def test_shares_of_a_step_above_the_whole_are_refused(tmp_path: Path) -> None:
    text = "job_id,arrival_seconds,seconds,compute_share,lookup_share\na,0,60,0.8,0.5\n"
    assert "at most 1" in problems(written(tmp_path, text))


def test_a_maximum_below_the_requested_number_is_refused(tmp_path: Path) -> None:
    text = "job_id,arrival_seconds,seconds,workers,max_workers\na,0,60,8,4\n"
    assert "line 2, max_workers: '4' is not allowed; allowed: at least the 8" in problems(written(tmp_path, text))


@pytest.mark.parametrize(
    "text, expected",
    [("", "no line"), (HEADER, "no line"), ("job_id,workers\na,1\n", "column arrival_seconds: absent")],
)
def test_a_file_that_is_not_a_table_of_jobs_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in problems(written(tmp_path, text))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "check the path" in problems(tmp_path / "none.csv")


def test_added_and_removed_nodes_are_read_in_the_files_unit(tmp_path: Path) -> None:
    file = tmp_path / "spot.csv"
    file.write_text("seconds,nodes\n10,-3\n20,5\n")
    assert read_node_changes(file, 60.0) == (NodeChange(600.0, -3), NodeChange(1200.0, 5))


def test_every_wrong_change_of_nodes_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "spot.csv"
    file.write_text("seconds,nodes\n10,0\n-1,5\n20,1.5\n30,many\n")
    with pytest.raises(SpecError) as caught:
        read_node_changes(file)
    message = str(caught.value)
    for line, field in ((2, "nodes"), (3, "seconds"), (4, "nodes"), (5, "nodes")):
        assert f"line {line}, {field}" in message
    assert "whole number but 0" in message


def test_a_problem_names_its_line_also_after_empty_lines_and_line_breaks_in_fields(tmp_path: Path) -> None:
    found = problems(written(tmp_path, 'job_id,arrival_seconds,seconds,name\n\na,0,60,"two\nlines"\n\nb,0,never,\n'))
    assert "line 6, seconds" in found


def test_a_file_of_a_spreadsheet_is_read(tmp_path: Path) -> None:
    (job,) = read_jobs(written(tmp_path, "\ufeffjob_id,arrival_seconds,seconds\na,0,60\n")).jobs
    assert job.job_id == "a"
