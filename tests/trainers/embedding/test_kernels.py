"""Pooling of rows and its gradient, compared with numpy."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elastrec.trainers.embedding.kernels import pool_rows, spread_gradient

BESIDE = 2
"""Columns behind the pooled rows that belong to somebody else."""


@st.composite
def problems(draw: st.DrawFn) -> dict[str, np.ndarray]:
    """Two features of the batch, the second of which is averaged, in bags of up to three ids."""
    batch, dimension = draw(st.integers(1, 40)), draw(st.integers(1, 20))
    apart = draw(st.integers(0, dimension - 1))
    lengths = draw(st.lists(st.integers(0, 3), min_size=2 * batch, max_size=2 * batch))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    rows = random.random((5, dimension), np.float32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return {
        "rows": rows,
        "inverse": random.integers(0, len(rows), offsets[-1]).astype(np.int32),
        "offsets": offsets,
        "columns": np.array([0, dimension - apart]),
        "first_columns": np.array([0, apart]),
        "firsts": random.random((batch, 2 * apart), np.float32),
        "out": random.random((batch, 2 * (dimension - apart) + BESIDE), np.float32),
        "apart": np.array(apart),
    }


FEATURES, IS_MEAN = np.arange(2), np.array([False, True])


def bags(problem: dict[str, np.ndarray]) -> list[tuple[int, int, np.ndarray, np.float32]]:
    """Feature, row of the batch, rows of its ids, and what each counts."""
    offsets, inverse = problem["offsets"], problem["inverse"]
    batch = len(problem["out"])
    listed = []
    for k in FEATURES.tolist():
        for b in range(batch):
            places = inverse[offsets[k * batch + b] : offsets[k * batch + b + 1]]
            listed.append((k, b, places, np.float32(1 / len(places) if IS_MEAN[k] and len(places) else 1)))
    return listed


@given(problems())
def test_pooling_writes_only_the_rows_of_both_outputs(problem: dict[str, np.ndarray]) -> None:
    apart, rows = int(problem["apart"]), problem["rows"]
    others = rows.shape[1] - apart
    firsts, out = problem["firsts"].copy(), problem["out"].copy()
    for k, b, places, share in bags(problem):
        pooled = share * rows[places].sum(0) if len(places) else np.zeros(rows.shape[1], np.float32)
        firsts[b, k * apart : (k + 1) * apart], out[b, k * others : (k + 1) * others] = pooled[:apart], pooled[apart:]
    pool_rows(
        rows, problem["inverse"], problem["offsets"], FEATURES, problem["columns"], problem["first_columns"], IS_MEAN,
        len(out), apart, problem["firsts"], problem["out"],
    )  # fmt: skip
    np.testing.assert_allclose(problem["firsts"], firsts, rtol=1e-6)
    np.testing.assert_allclose(problem["out"], out, rtol=1e-6)


@given(problems())
def test_gradients_of_both_outputs_are_added_up_by_row(problem: dict[str, np.ndarray]) -> None:
    apart, rows = int(problem["apart"]), problem["rows"]
    others = rows.shape[1] - apart
    expected, gradients = np.zeros_like(rows), np.zeros_like(rows)
    for k, b, places, share in bags(problem):
        firsts, out = problem["firsts"][b], problem["out"][b]
        gradient = np.concatenate([firsts[k * apart : (k + 1) * apart], out[k * others : (k + 1) * others]])
        for place in places.tolist():
            expected[place] += share * gradient
    spread_gradient(
        problem["firsts"], problem["out"], problem["inverse"], problem["offsets"], FEATURES, problem["columns"],
        problem["first_columns"], IS_MEAN, len(problem["out"]), apart, gradients,
    )  # fmt: skip
    np.testing.assert_allclose(gradients, expected, rtol=1e-5)
