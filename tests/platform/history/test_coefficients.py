"""A fitted model is written to a run and read back."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrec.platform.history import metric_names as names
from elastrec.platform.history.decisions import coefficient_figures, read_coefficients
from elastrec.platform.scaling.types import Coefficients

amounts = st.floats(0, 1e6)
some_coefficients = st.builds(
    Coefficients, gradient=amounts, update=amounts, synchronise=amounts, embedding=amounts,
    fixed=st.floats(1e-9, 1e6), compute_fixed=st.none() | amounts, fan_out=amounts, fan_in=amounts,
    overlap=st.floats(1, 8),
)  # fmt: skip
FITTED = Coefficients(gradient=1e-4, update=1e-3, synchronise=0.0, embedding=2e-9, fixed=0.01)


@given(some_coefficients)
def test_stored_coefficients_are_read_back(fitted: Coefficients) -> None:
    assert read_coefficients(coefficient_figures(fitted)) == fitted


def test_every_figure_has_a_name_that_the_page_of_metrics_explains() -> None:
    assert set(coefficient_figures(FITTED)) >= {"scaling/coefficients/gradient", "scaling/coefficients/fixed"}
    assert names.SCALING_COEFFICIENT in names.DESCRIPTIONS


@pytest.mark.parametrize("broken", [{}, {"gradient": math.nan}, {"fixed": -1.0}, {"embedding": math.inf}])
def test_coefficients_that_no_fit_gives_are_ignored(broken: dict[str, float]) -> None:
    figures = coefficient_figures(msgspec.structs.replace(FITTED, **broken)) if broken else {}
    assert read_coefficients(figures) is None


def test_an_incomplete_model_is_ignored() -> None:
    figures = coefficient_figures(FITTED)
    del figures["scaling/coefficients/gradient"]
    assert read_coefficients(figures) is None
