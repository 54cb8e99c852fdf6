"""The size of a bsp step: rounds that are smaller than the job's global batch are put together until they make one.

Rounds are small while workers still start, after some ran out of shards, and while a lost one is replaced. Steps that
small would follow gradients of larger variance at a learning rate that was chosen for the whole batch, so the global
batch has to stay fixed (AntDT §III-A). No lock, no clock and no parameters in here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elastrec.platform.transport.job_messages import WorkerProcess
from elastrec.trainers.parameter_server.gradients import Gradient
from elastrec.trainers.parameter_server.messages import Origin


@dataclass(eq=False)
class Pushed:
    """A push of a worker that the server has taken.

    Attributes:
        is_released: the worker may go on: with bsp its round is complete.
    """

    worker: WorkerProcess
    origin: Origin
    gradient: Gradient
    is_released: bool = False


class GlobalBatch:
    """Pushes whose rounds are complete and that wait for a step.

    Args:
        samples: of a whole step; a round of so many, or more, is a step of its own.
    """

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._waiting: list[Pushed] = []

    def add(self, pushes: Sequence[Pushed]) -> list[Pushed]:
        """Takes a round; returns all pushes that take a step together, once they come nearest to a whole one.

        Empty while they wait for more.
        """
        self._waiting.extend(pushes)
        together = sum(push.gradient.samples for push in self._waiting)
        next_round = sum(push.gradient.samples for push in pushes)
        if 2 * together + next_round < 2 * self._samples:
            return []
        return self.take()

    def take(self) -> list[Pushed]:
        """What waits, however little that is."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def drop(self, worker: WorkerProcess) -> None:
        """The worker's waiting pushes are void."""
        self._waiting = [push for push in self._waiting if push.worker != worker]
