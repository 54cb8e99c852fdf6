"""Values of rows as int8 with a scale per row and segment: a quarter of the bytes, with a loss of precision.

The quantization is symmetric and linear: a number is rounded to the nearest of 255 multiples of the largest absolute
value of its row's segment ÷ 127, so it changes by at most a 254th of that value. DLRover-RM does not have it;
Check-N-Run (Eisenman et al., NSDI 2022) found that it does not harm recommendation models as long as there are few
restores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from elastrec.checkpoints.errors import DamagedRecordError
from elastrec.checkpoints.sections import Attribute

Array = np.ndarray[Any, Any]
Columns = dict[str, Array]

STEPS = 127
"""Number of steps from zero to the largest number."""
VALUES, QUANTIZED, SCALES, WIDTHS = "values", "quantized_values", "scales", "segment_widths"


def quantized(columns: Columns, widths: Sequence[int]) -> tuple[Columns, dict[str, Attribute]]:
    """Rows' columns with `quantized_values` [n, D] int8 and `scales` [n, k] float32 instead of `values` [n, D].

    Args:
        widths: number of values of each of the k segments; their sum is D.

    Returns:
        the columns, and the attributes that their section needs to be read.
    """
    values = columns[VALUES]
    starts = np.cumsum([0, *widths[:-1]])
    scales = np.maximum.reduceat(np.abs(values), starts, axis=1) / np.float32(STEPS)
    # A segment of zeros stays zero; values that are not finite stay so because of their scale.
    divisors = np.repeat(np.where(np.isfinite(scales) & (scales > 0), scales, np.float32(1)), widths, axis=1)
    with np.errstate(invalid="ignore"):
        steps = np.nan_to_num(np.rint(values / divisors), nan=1, posinf=STEPS, neginf=-STEPS)
    others = {name: column for name, column in columns.items() if name != VALUES}
    small = {QUANTIZED: np.clip(steps, -STEPS, STEPS).astype(np.int8), SCALES: scales.astype(np.float32)}
    return others | small, {WIDTHS: ",".join(str(width) for width in widths)}


def dequantized(columns: Columns, attributes: dict[str, Attribute], where: str) -> Columns:
    """Rows' columns with `values` [n, D] float32 again; those that were not quantized are returned as they are.

    Raises:
        DamagedRecordError: the section does not match the segments of its rows.
    """
    if QUANTIZED not in columns:
        return columns
    steps, scales = columns[QUANTIZED], columns[SCALES]
    widths = [int(width) for width in str(attributes.get(WIDTHS, "")).split(",") if width.isdecimal()]
    if (len(widths), sum(widths)) != (scales.shape[1], steps.shape[1]):
        raise DamagedRecordError(
            f"{where}: {steps.shape[1]} numbers per row in segments of {widths}, but {scales.shape[1]} scales"
        )
    values = steps.astype(np.float32) * np.repeat(scales, widths, axis=1)
    return {name: column for name, column in columns.items() if name not in (QUANTIZED, SCALES)} | {VALUES: values}
