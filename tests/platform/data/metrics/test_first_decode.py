"""Sketches, which several threads of a master decode at the same time when the first heartbeats arrive."""

from __future__ import annotations

import pytest

from tests.first_decode import types_collected

_IMPORTS = """
from elastrec.platform.data.metrics.binary import BinaryMetricsSketch
from elastrec.platform.data.metrics.heads import HeadSketches
from elastrec.platform.data.metrics.values import ValueMetricsSketch
from elastrec.platform.specs.errors import DataError
"""
_DECODES = """
try:
    {sketch}.decode(b"")
except DataError as error:
    assert "sketch" in str(error), error
"""


@pytest.mark.parametrize("sketch", ["BinaryMetricsSketch", "HeadSketches", "ValueMetricsSketch"])
def test_the_first_sketches_can_be_decoded_by_several_threads(sketch: str) -> None:
    assert types_collected(_IMPORTS, _DECODES.format(sketch=sketch)) == ("[]", "")
