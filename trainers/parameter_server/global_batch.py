"""The size of a bsp step: rounds that are smaller than the job's global batch are put together until they make one.

Rounds are small while workers still start, after some ran out of shards, and while a lost one is replaced. Steps that
small would follow gradients of larger variance at a learning rate that was chosen for the whole batch, so the global
batch has to stay fixed (AntDT §III-A). No lock, no clock and no parameters in here.
"""

from __future__ import annotations

from collections.abc import Sequence

from elastrec.trainers.parameter_server.gradients import Gradient, average


class GlobalBatch:
    """Gradients on their way to a step.

    Args:
        samples: of a whole step; a round of so many, or more, is a step of its own.
    """

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._waiting: list[Gradient] = []

    def add(self, pushes: Sequence[Gradient]) -> Gradient | None:
        """Takes a round's gradients; returns their mean with those that waited, once they come nearest to a step.

        A push that makes a step alone is returned as it is.
        """
        self._waiting.extend(pushes)
        together = sum(gradient.samples for gradient in self._waiting)
        next_round = sum(gradient.samples for gradient in pushes)
        if 2 * together + next_round < 2 * self._samples:
            return None
        return self.take()

    def take(self) -> Gradient | None:
        """The mean of what waits, however little that is; None when nothing does."""
        waiting, self._waiting = self._waiting, []
        return average(waiting) if waiting else None
