"""A look at a job's memory between two rounds: what a round would ask for, where the next one may come too late.

The job's master looks, a real and a simulated one alike. It is the same forecast and the same plan as a round's; only
whether it can wait is decided here.
"""

from __future__ import annotations

import msgspec

from elastrec.platform.scaling.job_profile import JobFacts, NotNow, decidable
from elastrec.platform.scaling.types import JobProfile, Plan
from elastrec.platform.specs.metrics import WINDOW_SECONDS

MEMORY = "memory-forecast"
"""Policy of the plans that a memory forecast asks for."""
LEAST_SECONDS = WINDOW_SECONDS
"""Between two looks: nothing new is known before."""


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What one look found.

    Attributes:
        plan: to be carried out now; None: nothing is needed, or the next round is early enough.
        seconds: until the next look.
    """

    plan: Plan | None
    seconds: float


def memory_plan(job: JobProfile) -> Plan | None:
    """What the memory forecast asks for; None where memory lasts."""
    wish = job.memory_wish
    if wish is None:
        return None
    return Plan(
        job_id=job.job_id, policy=MEMORY, before=job.allocation, allocation=wish.allocation, reason=wish.reason
    )  # fmt: skip


def look(known: JobFacts, plan_seconds: float) -> Look:
    """Gives memory where the limit may be reached before a plan that is made later could be carried out.

    No sooner: every count of rows narrows the band, and what a wide one asks for may be several times too much. So what
    a round comes for in time is left to the round. A forecast is trusted for half of the time that it leaves, and of
    the time that the job has trained: speeds and tables may change meanwhile.

    Args:
        known: `until_next_change_seconds` is the time between two rounds, and the longest between two looks.
        plan_seconds: that carrying a plan out takes at most.
    """
    decided = decidable(known)
    job = decided.memory if isinstance(decided, NotNow) else decided
    seen = known.memory
    if job is None or seen is None or seen.samples_per_second is None:
        return Look(plan=None, seconds=LEAST_SECONDS)
    round_seconds = known.until_next_change_seconds
    trusted = seen.trained / seen.samples_per_second / 2
    plan, wish = memory_plan(job), job.memory_wish
    if plan is not None and wish is not None and wish.seconds_to_limit is not None:
        spare = wish.seconds_to_limit - plan_seconds
        trusted = min(trusted, spare / 2)
        if spare <= LEAST_SECONDS and not _was_given_up(known):
            why = f"a plan takes up to {plan_seconds:.0f} s, and no round has come before"
            plan = msgspec.structs.replace(plan, reason=f"{plan.reason}; {why}")
            return Look(plan=plan, seconds=LEAST_SECONDS)
    return Look(plan=None, seconds=min(max(trusted, LEAST_SECONDS), round_seconds))


def _was_given_up(known: JobFacts) -> bool:
    """Whether memory was asked for within the time of a round, and the job is not to have it any more.

    The cluster had no room for it, or somebody took it back: rounds ask no more often, either.
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
