"""A short campaign of random faults on real processes; the long one is `python -m tests.faults.campaign`."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from tests.faults.campaign.__main__ import Notes, _numbers, campaign
from tests.faults.campaign.outcome import Outcome
from tests.faults.campaign.plan import draw_run
from tests.faults.campaign.report import Report, as_page
from tests.faults.campaign.site import site_at

pytestmark = pytest.mark.services

# Two runs of one shape, so that one undisturbed run is enough: bsp, where all wait for all. The seed is one that draws
# what the table of faults says of them.
SEED, NUMBERS = 277510, (6, 7)


@pytest.mark.timeout(3600)
def test_random_faults_cost_no_sample_and_hardly_any_quality(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notes = Notes(tmp_path / "outcomes.jsonl", SEED)
    with site_at(tmp_path / "home") as site:
        report = campaign(site, SEED, iter(NUMBERS), notes, tmp_path / "evidence", faults=1000)
    assert [(outcome.number, outcome.problems) for outcome in report.outcomes] == [(n, []) for n in NUMBERS]
    assert sum(outcome.lost for outcome in report.outcomes) == 0
    # How many have a victim in time depends on the machine.
    assert all(outcome.faults for outcome in report.outcomes)
    # What was done is kept: an interrupted campaign does not do it again.
    again = Notes(tmp_path / "outcomes.jsonl", SEED)
    assert again.outcomes == notes.outcomes and again.undisturbed == notes.undisturbed


def test_parts_of_a_campaign_make_different_runs_of_different_shapes_and_know_of_each_others(tmp_path: Path) -> None:
    file = tmp_path / "outcomes.jsonl"
    one, other = Notes(file, 3), Notes(file, 3)
    numbers = [list(islice(_numbers(notes, part, 2), 9)) for part, notes in enumerate((one, other), 1)]
    assert sorted(numbers[0] + numbers[1]) == list(range(18))
    shapes = [{draw_run(3, number).shape for number in each} for each in numbers]
    assert not shapes[0] & shapes[1] and len(shapes[0] | shapes[1]) == 6
    one.add(Outcome(seed=3, number=0, shape="async", faults=["kill -9 worker"] * 2))
    other.look()
    assert other.faults == one.faults == 2 and next(_numbers(other, 1, 2)) == 1


def test_the_page_counts_kills_and_notices_by_victim_and_stage() -> None:
    struck = ["kill -9 old server while copying"] * 3 + [
        "SIGTERM old server while copying",
        "kill -9 node agent after a change",
    ]
    page = as_page(
        Report(seed=3, outcomes=[Outcome(seed=3, number=0, shape="s", faults=struck)], undisturbed={"s": 0.7})
    )
    assert "| old server | 0 + 0 | 3 + 1 | 0 + 0 | 0 + 0 |" in page and "| node agent | 0 | 0 | 0 | 1 |" in page


def test_the_page_tells_pauses_of_stopped_processes_from_the_others() -> None:
    stopped = Outcome(
        seed=3, number=0, shape="s", faults=["stop and continue master while handing over"], pauses=[0.1, 7.0]
    )
    others = Outcome(seed=3, number=1, shape="s", faults=["kill -9 master while handing over"], pauses=[0.3, 0.5])
    page = as_page(Report(seed=3, outcomes=[stopped, others], undisturbed={"s": 0.7}))
    assert "median; longest | 0.40 s; 7.00 s |" in page and "while it handed over | 0.40 s; 0.50 s |" in page


def test_the_page_lists_broken_promises() -> None:
    bad = Outcome(
        seed=3, number=2, shape="async", faults=["kill -9 worker"], recoveries=[4.0], problems=["5 samples were lost"],
        lost=5, auc=0.75,
    )  # fmt: skip
    good = Outcome(seed=3, number=1, shape="async", faults=["kill -9 server"] * 2, recoveries=[2.0], auc=0.751)
    page = as_page(Report(seed=3, outcomes=[good, bad], undisturbed={"async": 0.7525}, left_out=["network cut"]))
    assert "| faults | 3 |" in page and "| lost samples | 5 |" in page
    assert "| recovery, median | 3.0 s |" in page and "| recovery, longest | 4.0 s |" in page
    assert "undisturbed run | 0.00250" in page
    assert "run 2: 5 samples were lost" in page and "left out: network cut" in page
    assert "--seed 3 --faults 3" in page
