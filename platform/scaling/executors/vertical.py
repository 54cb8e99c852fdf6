"""The size of one executor from its use (Primus §3.2, eq. 2–3), for cores and for memory.

D(N) = Σ_{i=1..N} w(i) · (R_i − R_{i−1}) / N,   w(i) = 1 / (N − i + 1)       eq. 2: recent changes weigh more
R'_alloc = R_used + R_x + R_s                                                eq. 3: R_x = D over the window
no change when |R'_alloc − R_alloc| ≤ R_θ
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from elastrec.platform.scaling.amounts import CORES_STEP, is_positive, require


class VerticalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The paper names R_s, R_θ and a window of 10 minutes, and gives no other value.

    Attributes:
        safety: R_s as a share of the highest use; never below `least_safety` (in the resource's unit). Chosen: at most
            1 % of the work waits, however much the use changes from minute to minute; a known use needs less
            (`benchmarks/simulator/data_executors.py`).
        threshold: R_θ as a share of the allocation. Chosen: half of the safety, so that half of it remains where the
            allocation stays.
        cool_down_seconds: between two changes.
        step: the allocation is rounded to whole steps: to the nearest one if half of the safety remains, otherwise up.
    """

    safety: float = 0.2
    least_safety: float = 0.0
    threshold: float = 0.1
    cool_down_seconds: float = 600.0
    step: float = CORES_STEP

    def __post_init__(self) -> None:
        for name in ("safety", "least_safety", "threshold"):
            value = getattr(self, name)
            require(value >= 0, f"vertical.{name}", value, "0 or more", "correct the settings")
        require(is_positive(self.step), "vertical.step", self.step, "above 0", "give it in the resource's unit")


class VerticalPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`allocated` is what the executor should have; equal to `before`: no change."""

    before: float
    allocated: float
    used: float
    trend: float
    reason: str


def trend(used: Sequence[float]) -> float:
    """D of eq. 2 for R_0 … R_N; 0 for fewer than two."""
    steps = np.diff(np.asarray(used, dtype=np.float64))
    count = len(steps)
    return float(np.sum(steps / np.arange(count, 0, -1)) / count) if count else 0.0


def scale_vertically(
    used: Sequence[float],
    allocated: float,
    bounds: tuple[float, float],
    seconds_since_change: float,
    settings: VerticalSettings | None = None,
) -> VerticalPlan:
    """The allocation of one resource of an executor.

    Args:
        used: R_0 … R_N over the last x minutes, equally spaced, in the unit of `allocated` (cores or bytes).
        bounds: least and most.

    Raises:
        ScalingError: no measurement, or one that is no number or negative.
    """
    settings = settings or VerticalSettings()
    require(len(used) > 0, "used", "nothing", "at least one measurement", "measure the executor first")
    worst = next((value for value in used if not (math.isfinite(value) and value >= 0)), None)
    require(worst is None, "used", worst, "0 or more", "leave this measurement out")
    require(is_positive(allocated), "allocated", allocated, "above 0", "take it from the running pod")
    low, high = bounds
    require(0 < low <= high, "bounds", bounds, "0 < least ≤ most", "correct the job's limits")
    most, change = max(used), trend(used)
    safety = max(settings.safety * most, settings.least_safety)
    wanted = most + change + safety
    stepped = round(wanted / settings.step) * settings.step
    # Rounding up always would be a second margin in addition to the safety.
    if stepped < wanted - 0.5 * safety - 1e-9:
        stepped = math.ceil(wanted / settings.step - 1e-9) * settings.step
    stepped = min(max(stepped, low), high)

    def answer(value: float, reason: str) -> VerticalPlan:
        return VerticalPlan(before=allocated, allocated=value, used=most, trend=change, reason=reason)

    if not low <= allocated <= high:
        return answer(stepped, f"{allocated:.4g} is outside of {low:.4g} to {high:.4g}")
    text = f"used at most {most:.4g}, trend {change:+.3g}, safety {safety:.3g}"
    if seconds_since_change < settings.cool_down_seconds:
        return answer(
            allocated, f"{text}: cooling down for {settings.cool_down_seconds - seconds_since_change:.0f} s"
        )  # fmt: skip
    if abs(stepped - allocated) <= settings.threshold * allocated:
        return answer(allocated, f"{text}: {stepped:.4g} differs from {allocated:.4g} by too little")
    return answer(stepped, text)
