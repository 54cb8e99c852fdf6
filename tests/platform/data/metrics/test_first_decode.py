"""Sketches, which threads of a master decode at once when the first heartbeats arrive."""

from __future__ import annotations

import subprocess
import sys

import pytest

_DECODES = """
import typing
from elastrec.platform.data.metrics.binary import BinaryMetricsSketch
from elastrec.platform.data.metrics.heads import HeadSketches
from elastrec.platform.data.metrics.values import ValueMetricsSketch
from elastrec.platform.specs.errors import DataError

collected = []


class Reference(typing.ForwardRef, _root=True):
    def __init__(self, argument, **options):
        collected.append(argument)
        super().__init__(argument, **options)


typing.ForwardRef = Reference
try:
    {sketch}.decode(b"")
except DataError as error:
    assert "sketch" in str(error), error
print(collected)
"""


@pytest.mark.parametrize("sketch", ["BinaryMetricsSketch", "HeadSketches", "ValueMetricsSketch"])
def test_the_first_sketches_can_be_decoded_by_several_threads(sketch: str) -> None:
    """msgspec collects the types of a class when it first decodes it, and crashes if two threads decode it then."""
    program = _DECODES.format(sketch=sketch)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
