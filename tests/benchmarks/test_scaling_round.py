"""The benchmark of a round can fail: a dozen jobs and a few silent masters, with the goals of a thousand."""

from __future__ import annotations

from argparse import Namespace

import pytest

from benchmarks.scaling import scaling_round
from elastrec.platform.jobs.scaling import masters


@pytest.fixture
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masters, "ANSWER_SECONDS", 2.0)
    monkeypatch.setattr(masters.ask_profiles, "__defaults__", (2.0,))


@pytest.mark.usefixtures("short_wait")
def test_silent_masters_cost_a_round_no_more_than_one_of_them() -> None:
    figures = {each.figure: each for each in scaling_round.measure(Namespace(jobs=12, silent=4))}
    assert figures["scaling_round.silent_masters_cost"].met
    assert figures["scaling_round.seconds"].settings["jobs"] == 12
    assert figures["scaling_round.seconds"].settings["to_change"] > 0


def test_a_round_that_leaves_a_job_out_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling_round, "ScalingSettings", lambda: scaling_round_settings(least_steps=10_000))
    with pytest.raises(RuntimeError, match="1000 steps in its present configuration; 10000 are needed"):
        scaling_round.one_round(2, 0)


scaling_round_settings = scaling_round.ScalingSettings
