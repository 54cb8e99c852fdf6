"""Checks of a job's memory between two rounds, for the case that the next round would be too late.

The master of the job makes the checks, a real and a simulated one alike. Forecast and plan are those of a round; this
module only decides whether the plan can wait for the next round.
"""

from __future__ import annotations

import msgspec

from elastrec.platform.scaling.amounts import Allocation
from elastrec.platform.scaling.job_profile import MemoryFacts, memory_wish
from elastrec.platform.scaling.types import JobProfile, MemoryWish, Plan
from elastrec.platform.specs.metrics import WINDOW_SECONDS

MEMORY = "memory-forecast"
"""Policy name of plans that a memory forecast requests."""
LEAST_SECONDS = WINDOW_SECONDS
"""Shortest time between two checks: measurements do not change sooner."""


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check.

    Attributes:
        plan: to be applied now; None: nothing is needed, or the next round is early enough.
        seconds: until the next check.
        is_short: the job needs more memory before its end, now or later.
    """

    plan: Plan | None
    seconds: float
    is_short: bool = False


def memory_plan(job: JobProfile) -> Plan | None:
    """The plan that the memory forecast requests; None if memory is sufficient."""
    return None if job.memory_wish is None else _plan_of(job.job_id, job.allocation, job.memory_wish)


def _plan_of(job_id: str, before: Allocation, wish: MemoryWish) -> Plan:
    return Plan(job_id=job_id, policy=MEMORY, before=before, allocation=wish.allocation, reason=wish.reason)


def look(known: MemoryFacts, plan_seconds: float) -> Look:
    """Plans more memory if the limit may be reached before a later plan could be applied.

    Not earlier, because every count of rows narrows the band, and with a wide band the request may be several times too
    large. If the next round is early enough, the round decides. A forecast is used for half of the time until its
    limit, and of the time that the job has trained, because speeds and tables may change.

    Args:
        known: `until_next_change_seconds` is the time between two rounds, and the longest time between two checks.
        plan_seconds: the longest time in which a plan is applied.
    """
    seen = known.memory
    if not known.are_servers_settled or seen is None or seen.samples_per_second is None:
        return Look(plan=None, seconds=LEAST_SECONDS)
    round_seconds = known.until_next_change_seconds
    trusted = seen.trained / seen.samples_per_second / 2
    wish = memory_wish(known)
    if wish is not None and wish.seconds_to_limit is not None:
        spare = wish.seconds_to_limit - plan_seconds
        trusted = min(trusted, spare / 2)
        if spare <= LEAST_SECONDS and not _was_given_up(known):
            why = f"this takes up to {plan_seconds:.0f} s, so it does not wait for the next round"
            plan = _plan_of(known.job_id, known.allocation, wish)
            plan = msgspec.structs.replace(plan, reason=f"{plan.reason}; {why}")
            return Look(plan=plan, seconds=LEAST_SECONDS, is_short=True)
    return Look(plan=None, seconds=min(max(trusted, LEAST_SECONDS), round_seconds), is_short=wish is not None)


def _was_given_up(known: MemoryFacts) -> bool:
    """Whether memory was requested within the time of a round, and the job's shape no longer includes it.

    The cluster had no capacity for it, or the request was cancelled. Rounds do not repeat such a request sooner either.
    """
    now = known.allocation
    return any(
        each.asked_by == MEMORY
        and each.seconds_ago < known.until_next_change_seconds
        and (
            each.after.parameter_server_memory_bytes > now.parameter_server_memory_bytes
            or each.after.parameter_servers > now.parameter_servers
        )
        for each in known.changes
    )
