"""The benchmark of a scaling round with a dozen jobs and a few silent masters can miss its goals."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.scaling import scaling_round
from elastrec.platform.jobs.scaling import masters
from elastrec.platform.jobs.scaling.learned import learned
from elastrec.platform.jobs.scaling.profiles import profile_of
from elastrec.platform.scaling.amounts import Change
from elastrec.platform.scaling.types import JobProfile
from elastrec.platform.specs.scaling import ScalingSettings


@pytest.fixture
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masters, "ANSWER_SECONDS", 2.0)
    monkeypatch.setattr(masters.ask_profiles, "__defaults__", (2.0,))


@pytest.mark.usefixtures("short_wait")
def test_many_silent_masters_delay_a_round_no_more_than_one() -> None:
    figures = {each.figure: each for each in scaling_round.measure(Namespace(jobs=12, silent=4, history=4))}
    assert figures["scaling_round.silent_masters_cost"].met
    settings = figures["scaling_round.seconds"].settings
    assert settings["jobs"] == 12
    assert min(settings[name] for name in ("to_change", "to_get_memory", "to_resize")) > 0


def test_running_jobs_have_forecasts_sizes_and_a_prior(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    scaling_round.write_history(uri, 4, ScalingSettings().experiment)
    with scaling_round.cluster(4, 0, uri) as platform:
        known = learned(platform, ScalingSettings())
    assert len(known.past) == 2
    for number in range(3):
        found = profile_of(f"job-{number}", scaling_round.told_by(number), ScalingSettings(), known.past, 2.0**36)
        assert isinstance(found, JobProfile)
        assert found.movable == frozenset(Change) and found.memory is not None and found.prior is not None
        assert (found.memory_wish is not None) == (number % 10 == 0)


def test_a_round_that_leaves_a_job_out_gives_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling_round, "ScalingSettings", lambda: ScalingSettings(least_steps=10_000))
    with pytest.raises(RuntimeError, match="1000 steps in its present configuration; 10000 are needed"):
        # Nobody listens there: a round without history.
        scaling_round.one_round(2, 0, "http://127.0.0.1:1")
