"""The gate: a pure rule for two scores measured on the same rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrec.platform.jobs.ending.gate import decide
from elastrec.platform.jobs.types import ModelScore
from elastrec.platform.specs.job import Gate

GATE = Gate(metric="normalized_entropy", tolerance=0.002, minimum_auc=0.6)


def score(auc: float = 0.75, entropy: float = 0.8) -> ModelScore:
    return ModelScore(auc, entropy, 1000)


def test_the_first_model_only_has_to_reach_the_minimum() -> None:
    assert decide(GATE, score(), None).passed
    refused = decide(GATE, score(auc=0.59), None)
    assert not refused.passed
    assert "0.59" in refused.reason and "0.6" in refused.reason


@pytest.mark.parametrize(
    ("metric", "candidate", "passed"),
    [
        ("normalized_entropy", score(entropy=0.801), True),
        ("normalized_entropy", score(entropy=0.803), False),
        ("normalized_entropy", score(entropy=0.7), True),
        ("auc", score(auc=0.749), True),
        ("auc", score(auc=0.747), False),
        ("auc", score(auc=0.9), True),
    ],
)
def test_a_model_passes_within_the_tolerance_of_the_champion(metric: str, candidate: ModelScore, passed: bool) -> None:
    gate = Gate.model_validate({"metric": metric, "tolerance": 0.002, "minimum_auc": 0.6})
    decision = decide(gate, candidate, score(), champion_version="3")
    assert decision.passed is passed
    assert metric in decision.reason


def test_a_better_model_is_called_better() -> None:
    assert decide(GATE, score(entropy=0.79), score()).reason.endswith("better by 0.01000")
    assert "within the tolerance" in decide(GATE, score(entropy=0.801), score()).reason


def test_a_champion_that_cannot_read_the_rows_is_ignored() -> None:
    decision = decide(GATE, score(), None, champion_problem="feature C9 is gone")
    assert decision.passed
    assert "C9" in decision.reason


@pytest.mark.parametrize(
    ("metric", "only_label", "words"),
    [
        ("auc", 0.0, "AUC and normalised entropy are not defined on the 1,000 evaluation rows, because all of them have"
         " the label 0."),
        ("normalized_entropy", 1.0, "because all of them have the label 1."),
        ("normalized_error", 2.5, "the normalised error is not defined on the 1,000 evaluation rows, because all of"
         " them have the label 2.5."),
        ("auc", None, "AUC and normalised entropy are not defined on the 1,000 evaluation rows."),
    ],
)  # fmt: skip
@pytest.mark.parametrize("has_champion", [False, True])
def test_a_model_whose_metric_is_not_defined_does_not_pass_and_the_reason_says_why(
    metric: str, only_label: float | None, words: str, has_champion: bool
) -> None:
    gate = Gate.model_validate({"metric": metric, "minimum_auc": 0.0})
    undefined = ModelScore(None, None, 1000, 0.3, only_label=only_label)
    decision = decide(gate, undefined, undefined if has_champion else None, champion_version="3")
    assert not decision.passed and words in decision.reason and "`champion` in MLflow by hand" in decision.reason
    assert decision.candidate.log_loss == 0.3


LATER = "2026-01-03T00:00:00+00:00"


@pytest.mark.parametrize(
    ("champion", "problem", "words"),
    [
        (score(entropy=0.8), "", "not better"),
        (score(entropy=0.799), "", "not better"),
        (None, "feature C9 is gone", "could not be scored"),
        (ModelScore(0.7, None, 1000), "", "has no normalized_entropy"),
    ],
    ids=["equal", "tolerated", "unreadable", "without metric"],
)
def test_the_model_of_an_older_day_replaces_the_champion_of_a_later_one_only_if_it_is_better(
    champion: ModelScore | None, problem: str, words: str
) -> None:
    """A day that was trained late or again; the champion may need columns that the older rows do not have."""
    assert decide(GATE, score(), champion, champion_problem=problem).passed
    refused = decide(GATE, score(), champion, champion_problem=problem, later_data=LATER)
    assert not refused.passed and words in refused.reason
    assert refused.reason.endswith(f"it was trained on later rows than this model, until {LATER}")
    assert decide(GATE, score(entropy=0.79), score(), later_data=LATER).passed


@given(st.floats(0.6, 1), st.floats(0, 2), st.floats(0.6, 1), st.floats(0, 2))
def test_a_model_that_is_no_worse_always_passes(auc: float, entropy: float, gain: float, drop: float) -> None:
    better = ModelScore(max(auc, gain), min(entropy, drop), 10)
    assert decide(GATE, better, ModelScore(auc, entropy, 10)).passed
