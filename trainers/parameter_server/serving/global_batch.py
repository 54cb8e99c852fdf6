"""The size of a bsp step: each round is shared out so that steps have the job's global batch, however many workers.

The learning rate was chosen for the global batch, so it has to stay fixed while workers come and go (AntDT §III-A).
Where the members' minibatches together hold less than the global batch, several rounds make one step; where they could
hold more, each member gets a smaller share. No lock, no clock and no parameters in here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elastrec.platform.transport.messages.job import WorkerProcess
from elastrec.trainers.parameter_server.messages import Origin, Share
from elastrec.trainers.parameter_server.serving.gradients import Gradient


@dataclass(eq=False)
class Pushed:
    """A push of a worker that the server has taken.

    Attributes:
        share: of a round that its worker was given; None: it asked for none.
        is_released: the worker may go on: with bsp its round is complete.
        round: with bsp, the number of its round.
    """

    worker: WorkerProcess
    origin: Origin
    gradient: Gradient
    share: Share | None = None
    is_released: bool = False
    round: int = -1

    @property
    def planned(self) -> int:
        """Rows that the round counts it with: its share, though it may hold fewer at the end of a split."""
        return self.gradient.samples if self.share is None else self.share.rows


def shares(
    global_batch: int, waiting: int, sizes: Mapping[WorkerProcess, int]
) -> tuple[dict[WorkerProcess, int], bool]:
    """Shares out the next round of a step.

    A step has as few rounds as the minibatches allow. Where these do not divide the global batch, the step has fewer
    rows than that, by less than its number of rounds; it never has more.

    Args:
        waiting: rows that the rounds before it have put into the step.
        sizes: of each member, the most rows that it takes into a minibatch, at least 1.

    Returns:
        Rows of each member, in proportion to its size and at most that, 0 where there are too few to go round; and
        whether the round completes the step.
    """
    together = sum(sizes.values())
    rounds = -(-global_batch // together)
    left = max(global_batch - waiting, 1)
    rows = min(global_batch // rounds, left)
    # Rounding the running sum shares all rows out, and gives nobody more than its size.
    given, before, passed = {}, 0, 0
    for worker, size in sorted(sizes.items()):
        passed += size
        upto = -(-rows * passed // together)
        given[worker], before = upto - before, upto
    return given, left - rows <= global_batch % rounds


class GlobalBatch:
    """Pushes whose rounds are complete and that wait for a step.

    Args:
        samples: of a whole step.
    """

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._waiting: list[Pushed] = []

    def plan(self, sizes: Mapping[WorkerProcess, int]) -> tuple[dict[WorkerProcess, int], bool]:
        """The shares of the next round; see `shares`."""
        return shares(self._samples, self._planned, sizes)

    @property
    def _planned(self) -> int:
        return sum(push.planned for push in self._waiting)

    def add(self, pushes: Sequence[Pushed]) -> list[Pushed]:
        """Takes a round; returns all pushes of its step if the round completes it.

        Shares say so, not what this server has counted: all servers take a step after the same round. Pushes without
        shares make a step once they are enough.
        """
        self._waiting.extend(pushes)
        given = [push.share for push in pushes if push.share is not None]
        if any(share.is_last for share in given) or (not given and self._planned >= self._samples):
            return self.take()
        return []

    def take(self) -> list[Pushed]:
        """What waits, however little that is."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def drop(self, worker: WorkerProcess) -> None:
        """The worker's waiting pushes are void."""
        self._waiting = [push for push in self._waiting if push.worker != worker]
