"""Quotas of teams: a team may borrow idle capacity, and returns it when its owner requests it.

A team is entitled to a share of every resource of the cluster. Capacity above its entitlement is borrowed; capacity
beyond all listed shares has no owner. Three rules, in this order:

1. Capacity that a team requests within its entitlement, and capacity that the cluster has lost, is reclaimed at once:
   from the team with most capacity per share, from its job of lowest priority, worker by worker, never below a job's
   minimum.
2. Growth within entitlements is chosen next, each team by itself, the one with the highest priority first.
3. The remaining capacity is idle, and all jobs compete for it by the policy's own rules.

Borrowed capacity is reclaimed only in whole workers, and only for pods for which it is enough. No team falls below its
entitlement, so that it need not claim the same capacity again in the next round. A leaving worker returns its shards at
the last applied gradient: a reclaimed worker costs only the batches in flight. A team's size is its dominant share: the
larger one of cores and memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from elastrec.platform.scaling.amounts import Allocation, Resources, require
from elastrec.platform.scaling.types import Plan

POLICY = "quota"


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A running job as the quota uses it; no measurements are needed.

    Attributes:
        allocation: what it has, or is on its way to.
        least_workers: the minimum.
        pending_workers: its workers that wait for capacity; removing one of them frees nothing.
    """

    job_id: str
    team: str
    allocation: Allocation
    least_workers: int = 1
    pending_workers: int = 0
    priority: float = 1.0

    @property
    def worker(self) -> Resources:
        """Of one worker."""
        return Resources(self.allocation.worker_cores, float(self.allocation.worker_memory_bytes))


@dataclass(frozen=True)
class Shares:
    """The entitlements and the present holdings of teams.

    Attributes:
        total: of the cluster.
        entitled: share by team, 0 to 1, together at most 1; a team that is not named is entitled to nothing.
        held: by team, all of its pods, with masters; pods that wait for capacity hold nothing.
    """

    total: Resources
    entitled: Mapping[str, float]
    held: Mapping[str, Resources]

    def __post_init__(self) -> None:
        for team, share in self.entitled.items():
            inside = math.isfinite(share) and 0 <= share <= 1
            require(inside, f"teams.{team}.share", share, "0 to 1", "give the share of the cluster that is the team's")
        together = math.fsum(self.entitled.values())
        require(together <= 1 + 1e-9, "teams: shares together", together, "at most 1", "lower some")

    @property
    def free(self) -> Resources:
        """Negative where the cluster has lost capacity that jobs hold."""
        free = self.total
        for held in self.held.values():
            free = free - held
        return free

    def claim(self, team: str) -> Resources:
        """The rest of the team's entitlement."""
        held, share = self.held.get(team, Resources()), self.entitled.get(team, 0.0)
        return Resources(
            max(0.0, share * self.total.cores - held.cores),
            max(0.0, share * self.total.memory_bytes - held.memory_bytes),
        )

    def dominant(self, amount: Resources) -> float:
        """The larger of an amount's shares of the cluster's cores and memory."""
        shares = [
            part / whole if whole > 0 else math.inf
            for part, whole in (
                (amount.cores, self.total.cores),
                (amount.memory_bytes, self.total.memory_bytes),
            )
            if part > 0
        ]
        return max(shares, default=0.0)


@dataclass(frozen=True)
class Reclaimed:
    """Reclaimed capacity.

    Attributes:
        plans: of the jobs that lose workers; they are applied first.
        rightful: by team, requests within its entitlement that are not yet granted: no other team may use them.
    """

    plans: tuple[Plan, ...]
    rightful: Mapping[str, Resources]


def reclaim(holders: Sequence[Holder], shares: Shares, waiting: Mapping[str, Sequence[Resources]]) -> Reclaimed:
    """Rule 1: the number of workers that each job loses.

    Args:
        holders: the jobs that can be made smaller.
        waiting: by team, the pods that are requested and not yet granted.
    """
    asked = {team: _within(pods, shares.claim(team)) for team, pods in sorted(waiting.items())}
    rightful = {team: sum(pods, Resources()) for team, pods in asked.items()}
    most = _Taking(holders, shares)
    most.take_borrowed(None)
    # For a pod for which all borrowed capacity together is too small, workers would be lost in vain.
    counted, room = dict[str, Resources](), shares.free + most.freed
    for team, pods in asked.items():
        counted[team] = sum(_within(pods, room), Resources())
        room = room - counted[team]
    wanted = sum(counted.values(), Resources())
    taking = _Taking(holders, shares)
    taking.take_borrowed(wanted)
    # Entitlements are shares of the capacity that is left, so that they give no protection from its loss.
    while _is_missing(Resources(), shares.free + taking.freed) and (team := taking.richest()):
        taking.take(team, borrowed_only=False)
    askers = ", ".join(team for team, amount in counted.items() if _is_missing(amount, Resources()))
    lost = f"the cluster has lost {_text(Resources() - shares.free)}"
    return Reclaimed(taking.plans(f"{askers} asks for {_text(wanted)} of its share" if askers else lost), rightful)


class _Taking:
    """Workers taken so far."""

    def __init__(self, holders: Sequence[Holder], shares: Shares) -> None:
        self._shares = shares
        self._taken = {holder.job_id: 0 for holder in holders}
        self._by_team: dict[str, list[Holder]] = {}
        for holder in holders:
            self._by_team.setdefault(holder.team, []).append(holder)
        self._held = dict(shares.held)
        self.freed = Resources()

    def _excess(self, team: str) -> float:
        """A team's holdings relative to its share; infinity where it is entitled to nothing."""
        share, held = self._shares.entitled.get(team, 0.0), self._shares.dominant(self._held.get(team, Resources()))
        return held / share if share else math.inf if held else 0.0

    def lenders(self) -> list[str]:
        """Teams with borrowed capacity, by falling holdings relative to their share."""
        return sorted((team for team in self._by_team if self._excess(team) > 1.0), key=lambda t: (-self._excess(t), t))

    def take_borrowed(self, wanted: Resources | None) -> None:
        """Takes borrowed workers until so much is free; None: all of them."""
        for team in self.lenders():
            while wanted is None or _is_missing(wanted, self._shares.free + self.freed):
                if not self.take(team, borrowed_only=True):
                    break

    def richest(self) -> str:
        """The team with most capacity relative to its share that can give up a worker; empty without one."""
        able = [team for team in self._by_team if self._next(team, borrowed_only=False)]
        return min(able, key=lambda team: (-self._excess(team), team), default="")

    def _waits(self, holder: Holder) -> bool:
        """Whether the next worker to be removed waits for capacity; the newest are removed first."""
        return self._taken[holder.job_id] < holder.pending_workers

    def _next(self, team: str, *, borrowed_only: bool) -> Holder | None:
        """The job that loses a worker: of lowest priority, among equals with most workers above its minimum."""
        held, share = self._held.get(team, Resources()), self._shares.entitled.get(team, 0.0)
        able = []
        for holder in self._by_team[team]:
            spare = holder.allocation.workers - self._taken[holder.job_id] - holder.least_workers
            keeps = self._waits(holder) or self._shares.dominant(held - holder.worker) >= share - 1e-9
            if spare > 0 and (keeps or not borrowed_only):
                able.append((holder.priority, -spare, holder.job_id, holder))
        return min(able)[3] if able else None

    def take(self, team: str, *, borrowed_only: bool) -> bool:
        """Takes one worker of a team; false when it can give none up."""
        holder = self._next(team, borrowed_only=borrowed_only)
        if holder is None:
            return False
        if not self._waits(holder):
            self.freed = self.freed + holder.worker
            self._held[team] = self._held.get(team, Resources()) - holder.worker
        self._taken[holder.job_id] += 1
        return True

    def plans(self, why: str) -> tuple[Plan, ...]:
        found = []
        for holder in (holder for team in sorted(self._by_team) for holder in self._by_team[team]):
            if taken := self._taken[holder.job_id]:
                left = msgspec.structs.replace(holder.allocation, workers=holder.allocation.workers - taken)
                found.append(
                    Plan(
                        job_id=holder.job_id, policy=POLICY, before=holder.allocation, allocation=left,
                        reason=f"gives {taken} of {holder.allocation.workers} workers back: {why}",
                    )
                )  # fmt: skip
        return tuple(found)


def _within(pods: Sequence[Resources], room: Resources) -> list[Resources]:
    """As many whole pods as fit together, in their order."""
    asked, taken = Resources(), list[Resources]()
    for pod in pods:
        if (asked + pod).fits(room):
            asked = asked + pod
            taken.append(pod)
    return taken


def _is_missing(wanted: Resources, free: Resources) -> bool:
    """Whether some requested resource is not free. Cores are compared to a thousandth, the finest unit of clusters."""
    return wanted.cores > free.cores + 1e-3 or wanted.memory_bytes > free.memory_bytes + 1.0


def _text(amount: Resources) -> str:
    return f"{max(0.0, amount.cores):.4g} cores and {max(0.0, amount.memory_bytes) / 2**30:.4g} GiB"
