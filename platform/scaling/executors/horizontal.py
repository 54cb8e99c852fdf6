"""The number of a job's data executors (Primus §3.2, eq. 1): with too few, workers wait; with too many, some idle.

    L_u = w · u,   u = [buffer fill, CPU, memory] of the data executors, shares of 0 to 1
    L_u < L_θ: the workers take faster than executors deliver, add; L_u > L_θ: remove

The paper sets no band around L_θ and no step. Here nothing happens within `band`, a step is in proportion to the
distance and at most `largest_step`, and a cool-down keeps one change from being judged before it works. A buffer's fill
is the integral of the surplus: a control by it alone overshoots and oscillates, so that the trend of the load
(`damping`) is used as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from elastrec.platform.scaling.amounts import is_positive, require


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Mean over a job's data executors at one moment, shares of 0 to 1."""

    buffer_fill: float
    cpu: float
    memory: float


class HorizontalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The paper gives no value of L_θ and w. All are chosen: the number of executors settles under a constant load, and
    follows a changing one (`benchmarks/simulator/data_executors.py`).

    Attributes:
        weights: w of eq. 1. The buffer alone by default: a full buffer shows a surplus of executors, while a busy CPU
            may mean either. Weights of at least 0 that add up to 1.
        threshold, band: L_θ, and the distance on either side of it within which the number stays.
        damping: share of the load's change over its window that is expected to continue.
        gain: share of executors changed per share of distance to L_θ.
        largest_step: largest share of the executors that one change adds or removes.
        cool_down_seconds: between two changes of a job.
        memory_limit: executors are not removed when the others' memory would be above it. As full as a server may be
            (`memory.MemoryRules`).
    """

    weights: tuple[float, float, float] = (1.0, 0.0, 0.0)
    threshold: float = 0.5
    band: float = 0.15
    damping: float = 1.5
    gain: float = 0.5
    largest_step: float = 0.25
    cool_down_seconds: float = 300.0
    memory_limit: float = 0.9

    def __post_init__(self) -> None:
        total = math.fsum(self.weights)
        good = all(weight >= 0 for weight in self.weights) and abs(total - 1.0) < 1e-6
        require(good, "horizontal.weights", self.weights, "three shares that add up to 1", "divide them by their sum")
        inside = self.threshold - self.band >= 0 and self.threshold + self.band <= 1 and self.band >= 0
        require(
            inside,
            "horizontal.threshold, band",
            (self.threshold, self.band),
            "a band within 0 to 1",
            "narrow the band, or no load would ever be outside of it",
        )
        step = self.largest_step
        require(0 < step <= 1, "horizontal.largest_step", step, "a share above 0, at most 1", "0.25 is usual")
        require(0 <= self.damping < math.inf, "horizontal.damping", self.damping, "0 or more", "1.5 is usual")
        require(is_positive(self.gain), "horizontal.gain", self.gain, "above 0", "0.5 is usual")


class HorizontalPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`executors` is what the job should have; equal to `before`: no change."""

    before: int
    executors: int
    load: float
    reason: str


def load_value(load: Load, weights: tuple[float, float, float]) -> float:
    """L_u of eq. 1.

    Raises:
        ScalingError: a share that is no number or outside of 0 to 1.
    """
    shares = (load.buffer_fill, load.cpu, load.memory)
    for name, share in zip(Load.__struct_fields__, shares, strict=True):
        inside = math.isfinite(share) and 0 <= share <= 1
        require(inside, f"load.{name}", share, "a share of 0 to 1", "divide what is used by what is granted")
    return math.fsum(weight * share for weight, share in zip(weights, shares, strict=True))


def _change(values: Sequence[float]) -> float:
    """From the first to the last of equally spaced values, by a straight line through all; 0 for fewer than three."""
    if len(values) < 3:
        return 0.0
    middle = (len(values) - 1) / 2
    slope = math.fsum((place - middle) * value for place, value in enumerate(values))
    return slope / math.fsum((place - middle) ** 2 for place in range(len(values))) * (len(values) - 1)


def scale_horizontally(
    executors: int,
    loads: Sequence[Load],
    bounds: tuple[int, int],
    seconds_since_change: float,
    settings: HorizontalSettings | None = None,
) -> HorizontalPlan:
    """The number of data executors, from the mean and the trend of the load over a window.

    Args:
        loads: since the last change, equally spaced; at least one.
        bounds: fewest and most executors.

    Raises:
        ScalingError: no load, or one that means nothing.
    """
    settings = settings or HorizontalSettings()
    require(len(loads) > 0, "loads", "none", "at least one", "measure the data executors first")
    low, high = bounds
    require(1 <= low <= high, "bounds", bounds, "1 ≤ fewest ≤ most", "correct the job's limits")
    values = [load_value(each, settings.weights) for each in loads]
    load = math.fsum(values) / len(values)
    heading = min(max(load + settings.damping * _change(values), 0.0), 1.0)

    def answer(wanted: int, reason: str) -> HorizontalPlan:
        return HorizontalPlan(before=executors, executors=wanted, load=load, reason=reason)

    text = f"load {load:.2f}, heading for {heading:.2f}, against {settings.threshold:g} ± {settings.band:g}"
    if not low <= executors <= high:
        return answer(min(max(executors, low), high), f"{executors} executors are outside of {low} to {high}")
    if seconds_since_change < settings.cool_down_seconds:
        return answer(executors, f"{text}: cooling down for {settings.cool_down_seconds - seconds_since_change:.0f} s")
    distance = settings.threshold - heading
    if abs(distance) <= settings.band:
        return answer(executors, f"{text}: within the band")
    step = max(1, math.floor(executors * min(settings.gain * abs(distance), settings.largest_step)))
    if distance > 0:
        wanted = min(executors + step, high)
        bounded = "" if wanted > executors else ", but it is at its most"
        return answer(wanted, f"{text}: workers take faster than executors deliver{bounded}")
    wanted = max(executors - step, low)
    memory = math.fsum(each.memory for each in loads) / len(loads)
    # The remaining executors take over the memory of the removed ones.
    while wanted < executors and memory * executors / wanted > settings.memory_limit:
        wanted += 1
    bounded = "" if wanted < executors else ", but none can be spared (least number or memory)"
    return answer(wanted, f"{text}: executors deliver faster than workers take{bounded}")
