"""The examples of docs/simulator.md work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import yaml

from elastrec.platform.jobs.what_if.job_table import read_jobs
from elastrec.platform.jobs.what_if.simulation_file import SimulationFile
from elastrec.platform.simulator.nodes import Nodes
from elastrec.platform.simulator.simulation import Simulation
from elastrec.platform.specs.text.loading import validate
from tests.platform.simulator.cluster import NODE, PRICES, QUIET, asked, job, run

PAGE = (Path(__file__).parents[4] / "docs" / "simulator.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_files_on_the_page_are_read() -> None:
    whole, history = (validate(SimulationFile, yaml.safe_load(block)) for block in blocks("yaml"))
    assert whole.model_copy(update={"workload": None}) == SimulationFile(
        workload=whole.workload, cluster=whole.cluster, trouble=whole.trouble
    ).model_copy(update={"workload": None})
    assert history.workload.history is not None


def test_the_policy_on_the_page_works_as_described() -> None:
    namespace: dict[str, Any] = {}
    exec(blocks("python")[0], namespace)
    long, short = job("long", seconds=7200.0), job("short", seconds=1200.0)
    jobs = [msgspec.structs.replace(each, allocation=asked(workers=1)) for each in (long, short)]
    report = Simulation(jobs, Nodes(20, NODE), namespace["OneMore"](), PRICES, QUIET).run()
    assert not report.problems
    workers = {each.job_id: each.allocation.workers for each in report.jobs}
    assert workers["long"] == 2
    static = run("static", jobs)
    assert {each.job_id for each in static.jobs} == {"long", "short"}


def test_every_column_on_the_page_is_read(tmp_path: Path) -> None:
    table = PAGE.split("### A CSV file of jobs")[1].split("###")[0]
    named = set(re.findall(r"`(\w+)`", " ".join(line.split("|")[1] for line in table.splitlines() if "|" in line)))
    file = tmp_path / "jobs.csv"
    for column in sorted(named - {"team", "name"}):
        file.write_text(f"job_id,arrival_seconds,seconds,{column}\na,0,60,wrong\n")
        try:
            read_jobs(file)
        except Exception as error:
            assert column in str(error)
        else:
            raise AssertionError(f"{column} is not read")
