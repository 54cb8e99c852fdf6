"""Rows as int8: a quarter of the bytes, and each number within half a quantisation step of the original."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from elastrec.checkpoints.errors import DamagedRecordError
from elastrec.checkpoints.quantized import QUANTIZED, SCALES, STEPS, VALUES, dequantized, quantized

WIDTHS = (1, 3)
LARGEST, SMALLEST = 2.0**100, 2.0**-100
"""Beyond these a scale would be no normal number any more."""
VALUES_OF_ROWS = arrays.arrays(
    np.float32,
    st.tuples(st.integers(0, 6), st.just(sum(WIDTHS))),
    elements=st.floats(-LARGEST, LARGEST, width=32).map(lambda value: value if abs(value) >= SMALLEST else 0.0),
)


@given(VALUES_OF_ROWS)
def test_a_number_moves_by_at_most_half_a_step_of_its_segments_largest(values: np.ndarray) -> None:
    found = dequantized(*quantized({VALUES: values}, WIDTHS), "here")[VALUES]
    assert found.shape == values.shape and found.dtype == np.float32
    for first, last in ((0, 1), (1, 4)):
        largest = np.abs(values[:, first:last]).max(axis=1, keepdims=True, initial=0)
        moved = np.abs(found[:, first:last].astype(np.float64) - values[:, first:last])
        assert (moved <= largest * (0.5 / STEPS + 1e-5)).all()


@given(VALUES_OF_ROWS)
def test_quantising_keeps_zero_and_already_rounded_values(values: np.ndarray) -> None:
    once = dequantized(*quantized({VALUES: values}, WIDTHS), "here")[VALUES]
    assert (once[values == 0] == 0).all()
    small, _ = quantized({VALUES: once}, WIDTHS)
    np.testing.assert_array_equal(small[QUANTIZED], quantized({VALUES: values}, WIDTHS)[0][QUANTIZED])


def test_segments_have_scales_of_their_own() -> None:
    values = np.array([[1000.0, 1e-3, 2e-3, -2e-3]], np.float32)
    small, attributes = quantized({VALUES: values, "state": values}, WIDTHS)
    assert small[QUANTIZED].tolist() == [[127, 64, 127, -127]] and small[SCALES].shape == (1, 2)
    assert VALUES not in small and small["state"] is values
    np.testing.assert_allclose(dequantized(small, attributes, "here")[VALUES], values, rtol=0.01)


def test_a_row_that_is_not_finite_is_not_restored_as_finite() -> None:
    values = np.array([[0.5, np.nan, 1, 2], [0.5, 1, np.inf, 2]], np.float32)
    found = dequantized(*quantized({VALUES: values}, WIDTHS), "here")[VALUES]
    assert found[:, 0].tolist() == [0.5, 0.5] and not np.isfinite(found[:, 1:]).all(axis=1).any()


def test_unquantized_rows_are_not_changed() -> None:
    columns = {VALUES: np.ones((2, 4), np.float32)}
    assert dequantized(columns, {}, "here") is columns


@pytest.mark.parametrize("attributes", [{}, {"segment_widths": "4"}, {"segment_widths": "1,2"}])
def test_a_section_that_does_not_say_its_segments_is_damaged(attributes: dict[str, str]) -> None:
    small, _ = quantized({VALUES: np.ones((2, 4), np.float32)}, WIDTHS)
    with pytest.raises(DamagedRecordError, match=r"here: 4 numbers per row in segments of \[.*\], but 2 scales"):
        dequantized(small, dict(attributes), "here")
