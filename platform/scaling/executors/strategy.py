"""One strategy at a time for a job: validate, sort, optimise (Primus §3.2), with a reason for each rejected one.

Several strategies may want to change the same job in one round: a memory forecast, a plan across jobs, data executors,
the size of a pod. The effects of two changes at once could not be separated, so that one is chosen and the others wait.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import IntEnum

import msgspec

from elastrec.platform.scaling.amounts import Resources, require
from elastrec.platform.specs.scaling import ScalingSettings

_DEFAULTS = ScalingSettings()


class Urgency(IntEnum):
    """Why a strategy wants a change; lower goes first."""

    PREVENT_FAILURE = 0
    GIVE_BACK_RECLAIMED = 1
    REMOVE_BOTTLENECK = 2
    SAVE = 3
    EXPLORE = 4


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a job that a strategy requests.

    Attributes:
        strategy: for example `memory`, `plan`, `horizontal`, `vertical`.
        moves: (before, after) by target, for example `workers` or `data executor memory`; equal values: no change.
        needs: resources against what the job has now.
        reason: the strategy's own.
        objection: why it cannot be done now, if that is known in advance; otherwise empty.
    """

    strategy: str
    moves: dict[str, tuple[float, float]]
    urgency: Urgency
    needs: Resources
    reason: str
    objection: str = ""

    @property
    def share(self) -> float:
        """Size of the largest change, relative to the present value."""
        found = (abs(after - before) / before if before else math.inf for before, after in self.moves.values())
        return max(found, default=0.0)

    @property
    def directions(self) -> dict[str, int]:
        """1 up, -1 down, by target; without targets that stay."""
        return directions_of(self.moves)


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was made to this job before.

    Attributes:
        moves: as those of a Wish.
        is_trial: it was made to measure its effect, and may be undone.
    """

    strategy: str
    moves: dict[str, tuple[float, float]]
    seconds_ago: float
    is_trial: bool = False


def directions_of(moves: Mapping[str, tuple[float, float]]) -> dict[str, int]:
    """1 up, -1 down; what stays is left out."""
    return {target: 1 if after > before else -1 for target, (before, after) in moves.items() if after != before}


class StrategySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the frequency of changes of a job.

    Attributes:
        cool_down_seconds: after any change; does not apply to changes that prevent a failure.
        reversal_seconds: time after a change in which its target is not changed in the other direction, except to
            prevent a failure.
        least_share: smaller changes are not worth a disturbance. Chosen: within the noise of a measured step.
    """

    cool_down_seconds: float = _DEFAULTS.cool_down
    reversal_seconds: float = _DEFAULTS.no_reversal
    least_share: float = 0.02


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """`chosen` is None when the job stays as it is; `left_out` has (wish, reason) of all others, in order."""

    chosen: Wish | None
    reason: str
    left_out: tuple[tuple[Wish, str], ...]


def objection(wish: Wish, past: Sequence[Done], free: Resources, settings: StrategySettings) -> str:
    """Validate: why this wish cannot be fulfilled now; empty when it can."""
    directions = wish.directions
    if not directions:
        return f"wants nothing: {wish.reason}"
    if wish.objection:
        return wish.objection
    if not wish.needs.fits(free):
        return (
            f"needs {wish.needs.cores:.4g} cores and {wish.needs.memory_bytes / 2**30:.4g} GiB more, but "
            f"{free.cores:.4g} cores and {free.memory_bytes / 2**30:.4g} GiB are free"
        )
    if wish.urgency is Urgency.PREVENT_FAILURE:
        return ""
    if wish.share < settings.least_share:
        return f"a change of {100 * wish.share:.2g} % is too small"
    if wish.urgency is Urgency.GIVE_BACK_RECLAIMED:
        return ""
    if past and (last := min(past, key=lambda each: each.seconds_ago)).seconds_ago < settings.cool_down_seconds:
        what = " and ".join(sorted(last.moves))
        return f"cooling down after {last.strategy} changed {what} {last.seconds_ago:.0f} s ago"
    for each in past:
        if each.is_trial or each.seconds_ago >= settings.reversal_seconds:
            continue
        done = directions_of(each.moves)
        if undone := sorted(target for target, way in directions.items() if done.get(target) == -way):
            return f"would undo what {each.strategy} did to {' and '.join(undone)} {each.seconds_ago:.0f} s ago"
    return ""


def choose_strategy(
    wishes: Sequence[Wish], past: Sequence[Done], free: Resources, settings: StrategySettings | None = None
) -> Verdict:
    """At most one wish.

    Validate: capacity, cool-down, size, no reversal. Sort: by urgency; among equals the strategy that has waited
    longest, then changes that free resources, then the larger change. Optimise: of the equally urgent wishes for the
    same target and direction, the largest includes the others.

    Args:
        past: changes of this job, any order.
        free: capacity above what the job holds.
    """
    settings = settings or StrategySettings()
    for each in past:
        good = math.isfinite(each.seconds_ago) and each.seconds_ago >= 0
        require(good, "past.seconds_ago", each.seconds_ago, "0 or more", "correct the job's record")
    objections = [(wish, objection(wish, past, free, settings)) for wish in wishes]
    left_out = [(wish, why) for wish, why in objections if why]
    valid = [wish for wish, why in objections if not why]
    if not valid:
        reason = "no strategy wants a change" if not wishes else "no wish is possible now"
        return Verdict(chosen=None, reason=reason, left_out=tuple(left_out))

    def waited(wish: Wish) -> float:
        return min((each.seconds_ago for each in past if each.strategy == wish.strategy), default=math.inf)

    valid.sort(key=lambda w: (w.urgency, -waited(w), w.needs.cores > 0, -w.share, w.strategy, sorted(w.moves)))
    first = valid[0]
    same = [wish for wish in valid if (wish.directions, wish.urgency) == (first.directions, first.urgency)]
    chosen = max(same, key=lambda wish: (wish.share, wish is first))
    for wish in valid:
        if wish is not chosen:
            covered = wish in same
            why = f"{chosen.strategy} goes farther" if covered else f"{chosen.strategy} goes first, one at a time"
            left_out.append((wish, why))
    urgency = chosen.urgency.name.lower().replace("_", " ")
    return Verdict(chosen=chosen, reason=f"{chosen.strategy} ({urgency}): {chosen.reason}", left_out=tuple(left_out))
