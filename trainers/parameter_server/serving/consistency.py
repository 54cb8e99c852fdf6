"""async, bsp and ssp(k) as one pure state machine: the workers that may pull, and the pushes that are applied together.

- async: every push is a round of its own; no worker waits.
- ssp(k): pushes are applied at once; a worker may pull while its clock (pushes made) is at most k ahead of the slowest
  member's. A worker that joins starts at the slowest member's clock.
- bsp: a round holds one push of every member and is applied when complete. A worker whose push is still pending may not
  pull. Gradients of a round are averaged with the batches' sizes as weights, so W workers with batches of B rows take
  the step that one worker with a batch of W * B rows would take (see global_batch for its size).

Rounds have numbers, so that they have the same members on every server. A worker that joins takes part from the open
round on, or from the next one if the rows of the open one are already distributed (`open_round`). Another server may be
one round ahead, so the worker names the latest round of all servers before it pulls (`advance`), and each server waits
for it from that round on. A worker that leaves has no push pending: it leaves all servers before the same round.

Members are processes of workers. They join by their first request, leave when they run out of shards or pause, and are
dropped when the master's list no longer names them. A process that the list omits is refused: the master has given it
up and its shards are with others. Lists and workers' directives have the same version, so that a list older than a
worker's directive has no effect on that worker.

When buckets change servers, waiting pushes are dropped and sent again to the new owners: the server returns to the
first round of these pushes (`go_back`), and waits there for the same workers; a new owner gets the members and their
rounds from the old ones (`resume`). Clocks, input and output do not belong here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from elastrec.platform.transport.messages.directive import WorkerProcess
from elastrec.trainers.parameter_server.serving.attendance import Attending

Mode = Literal["async", "bsp", "ssp"]
Round = list[tuple[WorkerProcess, int]]
"""Pushes of one round, as (worker, token), ordered by worker so that the sum does not depend on arrival."""


class Consistency:
    """The state machine of one server.

    Args:
        staleness: k of ssp.

    Attributes:
        round: with bsp, the number of the open round: the first that is not complete.
        shared_out: members have their shares of the rounds up to this one; no other worker joins these.
    """

    def __init__(self, mode: Mode, staleness: int = 0) -> None:
        self.mode = mode
        self.staleness = staleness
        self.round = 0
        self.shared_out = -1
        self._clocks: dict[WorkerProcess, int] = {}
        self._first_round: dict[WorkerProcess, int] = {}  # of each member, the next that waits for it
        self._pending: dict[WorkerProcess, deque[tuple[int, int]]] = {}  # round and token
        self._leaving: set[WorkerProcess] = set()
        self._joined_at: dict[WorkerProcess, int] = {}
        self._named: frozenset[WorkerProcess] | None = None
        self._named_at = -1

    @property
    def is_shared_out(self) -> bool:
        """Whether members have their shares of the open round."""
        return self.round <= self.shared_out

    @property
    def members(self) -> list[WorkerProcess]:
        return sorted(self._clocks)

    @property
    def left(self) -> list[WorkerProcess]:
        """Processes that were members, and may be again."""
        return sorted(self._joined_at.keys() - self._clocks.keys())

    @property
    def awaited(self) -> list[WorkerProcess]:
        """Members for which the open round waits or has waited."""
        return sorted(worker for worker in self._first_round if self.is_awaited(worker))

    def is_awaited(self, worker: WorkerProcess) -> bool:
        """Whether it is one of `awaited`."""
        return self._first_round.get(worker, self.round + 1) <= self.round

    def first_round(self, worker: WorkerProcess) -> int:
        """With bsp, the next round that waits for a member; -1: it is not a member."""
        return self._first_round.get(worker, -1)

    def is_member(self, worker: WorkerProcess) -> bool:
        return worker in self._clocks

    def clock(self, worker: WorkerProcess) -> int:
        return self._clocks[worker]

    def joined_at(self, worker: WorkerProcess) -> int:
        """Version of the directive by which a worker joined."""
        return self._joined_at[worker]

    def join(self, worker: WorkerProcess, version: int) -> bool:
        """Makes the worker a member; idempotent.

        Args:
            version: of the directive that the worker follows.

        Returns:
            False when the master's list, no older than that directive, does not name the worker.
        """
        if worker in self._clocks:
            return True
        is_omitted = self._named is not None and worker not in self._named
        if is_omitted and version <= self._named_at:
            return False
        self._clocks[worker] = min(self._clocks.values(), default=0)
        self._first_round[worker] = max(self.round, self.shared_out + 1)
        self._joined_at[worker] = version
        return True

    def open_round(self, without: Iterable[WorkerProcess] = ()) -> None:
        """Records that shares of the open round are distributed: a worker that joins now takes part from the next round
        on.

        Args:
            without: members that get no share; the next round may have one for them.
        """
        self.shared_out = self.round
        for worker in without:
            self._first_round[worker] = self.round + 1

    def advance(self, worker: WorkerProcess, number: int) -> list[Round]:
        """Sets the round of a member's next push, at least the open one; returns rounds that are now complete."""
        if worker in self._first_round:
            self._first_round[worker] = max(self._first_round[worker], number)
        return self._complete_rounds()

    def leave(self, worker: WorkerProcess) -> list[Round]:
        """Removes a worker that stops voluntarily: its pending pushes stay in their rounds. Returns rounds now
        complete."""
        self._end_membership(worker)
        return self._complete_rounds()

    def leave_after_push(self, worker: WorkerProcess) -> None:
        """Removes the worker after the round of its pending push is complete."""
        self._leaving.add(worker)

    def drop(self, worker: WorkerProcess) -> tuple[list[int], list[Round]]:
        """Removes a lost worker, whose pending pushes are void. Returns their tokens, and rounds now complete."""
        self._end_membership(worker)
        self._joined_at.pop(worker, None)
        void = [token for _, token in self._pending.pop(worker, ())]
        return void, self._complete_rounds()

    def _end_membership(self, worker: WorkerProcess) -> None:
        self._clocks.pop(worker, None)
        self._first_round.pop(worker, None)
        self._leaving.discard(worker)

    def confirm(self, named: Iterable[WorkerProcess], version: int) -> list[WorkerProcess]:
        """Applies the master's list of members; returns those to `drop`: the list is newer than their joining and omits
        them.

        A worker that has left is among them, for pushes of it may still wait.

        Args:
            version: of the directive with the list; an older one than the last is ignored.
        """
        if version < self._named_at:
            return []
        names = frozenset(named)
        self._named, self._named_at = names, version
        return [w for w, joined_at in sorted(self._joined_at.items()) if w not in names and joined_at <= version]

    def go_back(self, pushed: Mapping[WorkerProcess, int]) -> None:
        """Drops waiting pushes; those of the last rounds are also sent again.

        Args:
            pushed: with bsp, the first round that waits again, of each worker whose pushes are sent again. One that has
                left since takes part until it leaves again.
        """
        for worker, first in self._first_round.items():
            self._first_round[worker] = max(first, self.round)
        for worker, first in pushed.items():
            self._clocks.setdefault(worker, min(self._clocks.values(), default=0))
            self._first_round[worker] = first
        self.round = min([self.round, *pushed.values()])
        self._pending.clear()
        self._leaving.clear()

    def resume(self, number: int, shared_out: int, members: Sequence[Attending]) -> None:
        """Continues in round `number` with exactly these members; none of their pushes waits here."""
        self.round, self.shared_out = number, shared_out
        self._clocks = {member.worker: member.clock for member in members}
        self._first_round = {member.worker: member.first_round for member in members}
        self._joined_at.update({member.worker: member.joined_at for member in members})

    def may_pull(self, worker: WorkerProcess) -> bool:
        """Whether a member's pull may be answered now."""
        if self.mode == "bsp":
            return not self._pending.get(worker) and self._first_round[worker] <= self.round
        if self.mode == "ssp":
            return self._clocks[worker] - min(self._clocks.values()) <= self.staleness
        return True

    def push(self, worker: WorkerProcess, token: int, number: int = -1) -> list[Round]:
        """Adds a member's push; returns the rounds that are now complete, in order.

        Args:
            number: of its round, with bsp; if that round is complete, the push is in the open one.
        """
        if self.mode != "bsp":
            self._clocks[worker] += 1
            return [[(worker, token)]]
        self._pending.setdefault(worker, deque()).append((number, token))
        return self.advance(worker, number)

    def _complete_rounds(self) -> list[Round]:
        rounds: list[Round] = []
        while True:
            due = sorted(worker for worker, pushes in self._pending.items() if pushes and pushes[0][0] <= self.round)
            if any(worker not in due for worker in self._first_round if self.is_awaited(worker)):
                break
            if not due:
                # This round has no member: continue with the first one that has.
                later = [*self._first_round.values(), *(pushes[0][0] for pushes in self._pending.values() if pushes)]
                if not later:
                    self.shared_out = min(self.shared_out, self.round - 1)
                    break
                self.round = min(later)
                continue
            rounds.append([(worker, self._pending[worker].popleft()[1]) for worker in due])
            self.round += 1
            for worker in due:
                if worker in self._clocks:
                    self._clocks[worker] += 1
                if worker in self._leaving:
                    self._end_membership(worker)
        for worker in [worker for worker, pushes in self._pending.items() if not pushes]:
            del self._pending[worker]
        return rounds
