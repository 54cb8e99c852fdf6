"""DedupeFactor: the model's formula, measurements, and proposed features."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.data.deduplicating.dedupe_factor import (
    FeatureSample,
    dedupe_factor,
    feature_factor,
    measured_factor,
    propose,
)


def _sessions(sizes: list[int]) -> np.ndarray:
    return np.repeat(np.arange(len(sizes)), sizes)


def _changing(session_N: np.ndarray, stays: float, rng: np.random.Generator) -> np.ndarray:
    """Codes that stay the same within a session with probability `stays`, and never return."""
    new = rng.random(len(session_N)) >= stays
    new[np.flatnonzero(np.diff(session_N, prepend=-1))] = True
    return np.cumsum(new).astype(np.int32)


def _sample(codes: np.ndarray, lengths: int | np.ndarray = 20) -> FeatureSample:
    return FeatureSample(codes.astype(np.int32), np.broadcast_to(lengths, len(codes)).astype(np.int64), True)


def test_the_formula_gives_the_papers_numbers() -> None:
    assert dedupe_factor(16.5, 0.9) == pytest.approx(1 / (1 - 15.5 / 16.5 * 0.9))
    assert dedupe_factor(1, 1) == 1
    assert dedupe_factor(16, 1) == pytest.approx(16)
    assert dedupe_factor(16, 0) == 1


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 50))
@settings(max_examples=60, deadline=None)
def test_the_measured_factor_counts_distinct_rows_of_each_batch(codes: list[int], batch: int) -> None:
    kept = sum(len(set(codes[i : i + batch])) for i in range(0, len(codes), batch))
    assert measured_factor(np.array(codes), np.full(len(codes), 3), batch) == pytest.approx(len(codes) / kept)


def test_empty_lists_save_nothing() -> None:
    assert measured_factor(np.zeros(5, np.int32), np.zeros(5, np.int64), 4) == 1.0


@pytest.mark.parametrize("stays", [0.3, 0.8, 0.95])
def test_the_prediction_is_within_ten_percent_if_values_never_return(stays: float) -> None:
    rng = np.random.default_rng(0)
    session_N = _sessions(rng.geometric(1 / 16.2, 3_000).tolist())
    found = feature_factor(
        "f", _sample(_changing(session_N, stays, rng)), session_N, np.arange(len(session_N)), 4_096
    )  # fmt: skip
    assert found.why == ""
    assert abs(found.predicted / found.measured - 1) < 0.1
    assert found.same_share == pytest.approx(stays, abs=0.02)


def test_log_order_finds_fewer_repeats_than_clustered_order() -> None:
    rng = np.random.default_rng(0)
    session_N = _sessions([16] * 1_000)
    found = feature_factor("f", _sample(session_N), session_N, rng.permutation(len(session_N)), 512)
    assert found.measured == pytest.approx(16)
    assert found.unclustered < 1.5


@pytest.mark.parametrize(
    ("codes", "lengths", "session_N", "batch", "why"),
    [
        (np.arange(1_000) % 2, 20, _sessions([10] * 100), 100, "rows repeat across sessions"),
        (np.zeros(1_000), 20, _sessions([1_000]), 50, "cut at the edges"),
        (
            np.repeat(np.arange(500), 2),
            np.where(np.arange(1_000) % 4 < 2, 100, 0),
            _sessions([4] * 250),
            200,
            "differ in length",
        ),
    ],
)
def test_a_wrong_prediction_has_a_reason(
    codes: np.ndarray, lengths: int | np.ndarray, session_N: np.ndarray, batch: int, why: str
) -> None:
    if why == "differ in length":
        # Long lists stay for the whole session of four, empty ones change in every row.
        session_of = session_N % 2 == 0
        codes = np.where(session_of, session_N * 10, 10_000 + np.arange(1_000))
        lengths = np.where(session_of, 100, 1)
    found = feature_factor("f", _sample(codes, lengths), session_N, np.arange(1_000), batch)
    assert why in found.why


def _proposal(samples: dict[str, FeatureSample], session_N: np.ndarray, **options: frozenset[str]):  # type: ignore[no-untyped-def]
    factors = [feature_factor(name, each, session_N, np.arange(len(session_N)), 512) for name, each in samples.items()]
    return propose(factors, samples, 512, **options)


def test_features_that_change_together_share_a_group_and_others_do_not() -> None:
    rng = np.random.default_rng(0)
    session_N = _sessions([16] * 200)
    together, alone = _changing(session_N, 0.8, rng), _changing(session_N, 0.8, rng)
    samples = {
        "likes": _sample(together),
        "profile": _sample(session_N),
        "shares": _sample(together * 7),
        "clicks": _sample(alone),
    }
    proposal = _proposal(samples, session_N)
    assert proposal.groups == (("likes", "shares"), ("profile",), ("clicks",))
    assert proposal.choices[0].why.endswith("changes together with shares")


def test_a_group_never_costs_its_least_changing_member_its_factor() -> None:
    session_N = _sessions([16] * 200)
    samples = {"profile": _sample(session_N), "cart": _sample(np.arange(len(session_N)) // 4)}
    assert _proposal(samples, session_N).groups == (("profile",), ("cart",))


def test_features_without_a_gain_stay_plain_with_a_reason() -> None:
    session_N = _sessions([16] * 100)
    samples = {"item": _sample(np.arange(1_600)), "short": _sample(session_N, 2), "long": _sample(session_N, 50)}
    proposal = _proposal(samples, session_N)
    assert proposal.groups == (("long",),)
    assert "is not above 1.5" in proposal.choices[0].why
    assert "cost less than the lookup" in proposal.choices[1].why


def test_computed_pooling_pays_for_short_lists_too() -> None:
    session_N = _sessions([16] * 100)
    samples = {"short": _sample(session_N, 2)}
    assert _proposal(samples, session_N, computed_pooling=frozenset({"short"})).groups == (("short",),)
