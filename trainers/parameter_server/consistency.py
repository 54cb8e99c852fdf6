"""async, bsp and ssp(k) as one pure state machine: who may pull, and which pushes are applied together.

- async: every push is a round of its own; nobody waits.
- ssp(k): pushes are applied at once; a worker may pull while its clock (pushes made) is at most k ahead of the slowest
  member's. A worker that joins starts at the slowest member's clock.
- bsp: a round holds one push of every member and is applied when complete. A worker whose push is still pending may not
  pull. Gradients of a round are averaged with the batches' sizes as weights, so W workers with batches of B rows take
  the step that one worker with a batch of W * B rows would take (see global_batch for rounds of fewer).

Members are processes of workers. They join by their first request, leave when they run out of shards or pause, and are
dropped when the master's list no longer names them. A process that the list omits is refused: the master has given it
up and its shards are with others. Lists and workers' directives carry the same version, so a list that is older than
the directive that a worker acts on says nothing about that worker. No clock and no input or output in here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Literal

from elastrec.platform.transport.job_messages import WorkerProcess

Mode = Literal["async", "bsp", "ssp"]
Round = list[tuple[WorkerProcess, int]]
"""Pushes that go together, as (worker, token), ordered by worker so that the sum does not depend on arrival."""


class Consistency:
    """The state machine of one server.

    Args:
        staleness: k of ssp.
    """

    def __init__(self, mode: Mode, staleness: int = 0) -> None:
        self.mode = mode
        self.staleness = staleness
        self._clocks: dict[WorkerProcess, int] = {}
        self._pending: dict[WorkerProcess, deque[int]] = {}
        self._joined_at: dict[WorkerProcess, int] = {}
        self._named: frozenset[WorkerProcess] | None = None
        self._named_at = -1

    @property
    def members(self) -> list[WorkerProcess]:
        return sorted(self._clocks)

    def is_member(self, worker: WorkerProcess) -> bool:
        return worker in self._clocks

    def clock(self, worker: WorkerProcess) -> int:
        return self._clocks[worker]

    def join(self, worker: WorkerProcess, version: int) -> bool:
        """Makes the worker a member; idempotent.

        Args:
            version: of the directive that the worker acts on.

        Returns:
            False when the master's list, no older than that directive, does not name the worker.
        """
        if worker in self._clocks:
            return True
        is_omitted = self._named is not None and worker not in self._named
        if is_omitted and version <= self._named_at:
            return False
        self._clocks[worker] = min(self._clocks.values(), default=0)
        self._joined_at[worker] = version
        return True

    def leave(self, worker: WorkerProcess) -> list[Round]:
        """The worker stops of its own will: its pending pushes stay in their rounds. Returns rounds now complete."""
        self._clocks.pop(worker, None)
        return self._complete_rounds()

    def drop(self, worker: WorkerProcess) -> tuple[list[int], list[Round]]:
        """The worker is gone: its pending pushes are void. Returns their tokens, and rounds now complete."""
        self._clocks.pop(worker, None)
        self._joined_at.pop(worker, None)
        void = list(self._pending.pop(worker, ()))
        return void, self._complete_rounds()

    def confirm(self, named: Iterable[WorkerProcess], version: int) -> list[WorkerProcess]:
        """Takes the master's list of members; returns those to `drop`: the list knows of their joining and omits them.

        A worker that has left is among them, for pushes of it may still wait.

        Args:
            version: of the directive that brought the list; an older one than the last is ignored.
        """
        if version < self._named_at:
            return []
        names = frozenset(named)
        self._named, self._named_at = names, version
        return [w for w, joined_at in sorted(self._joined_at.items()) if w not in names and joined_at <= version]

    def may_pull(self, worker: WorkerProcess) -> bool:
        """Whether a member's pull may be answered now."""
        if self.mode == "bsp":
            return not self._pending.get(worker)
        if self.mode == "ssp":
            return self._clocks[worker] - min(self._clocks.values()) <= self.staleness
        return True

    def push(self, worker: WorkerProcess, token: int) -> list[Round]:
        """A member's push arrived; returns the rounds that are complete now, in order."""
        if self.mode != "bsp":
            self._clocks[worker] += 1
            return [[(worker, token)]]
        self._pending.setdefault(worker, deque()).append(token)
        return self._complete_rounds()

    def _complete_rounds(self) -> list[Round]:
        rounds: list[Round] = []
        while any(self._pending.values()) and all(self._pending.get(worker) for worker in self._clocks):
            waiting = sorted(worker for worker, tokens in self._pending.items() if tokens)
            rounds.append([(worker, self._pending[worker].popleft()) for worker in waiting])
            for worker in waiting:
                if worker in self._clocks:
                    self._clocks[worker] += 1
        for worker in [worker for worker, tokens in self._pending.items() if not tokens]:
            del self._pending[worker]
        return rounds
