"""The size of a bsp step: rows of rounds are distributed so that steps have the job's global batch with any workers.

The learning rate was chosen for the global batch, so this batch has to stay fixed while workers join and leave (AntDT
§III-A). If the members' minibatches together have less than the global batch, several rounds make one step; if they
could have more, each member gets a smaller share. Locks, clocks and parameters do not belong here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elastrec.platform.transport.messages.directive import WorkerProcess
from elastrec.trainers.parameter_server.messages import Origin, Share
from elastrec.trainers.parameter_server.serving.gradients import Gradient


@dataclass(eq=False)
class Pushed:
    """An accepted push of a worker.

    Attributes:
        share: its worker's share of a round; None: it requested none.
        is_released: whether the worker may continue: with bsp, its round is complete.
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
        """Its rows in the round: its share, although it may have fewer at the end of a split."""
        return self.gradient.samples if self.share is None else self.share.rows


def shares(
    global_batch: int, waiting: int, sizes: Mapping[WorkerProcess, int]
) -> tuple[dict[WorkerProcess, int], bool]:
    """Distributes the rows of a step's next round.

    A step has as few rounds as the minibatches allow. If the rounds do not divide the global batch, the step has fewer
    rows, by less than its number of rounds; it never has more.

    Args:
        waiting: rows of the step's earlier rounds.
        sizes: of each member, the maximum of rows in its minibatch, at least 1.

    Returns:
        Rows of each member, in proportion to its size and at most that, 0 if there are too few for all; and whether the
        round completes the step.
    """
    together = sum(sizes.values())
    rounds = -(-global_batch // together)
    left = max(global_batch - waiting, 1)
    rows = min(global_batch // rounds, left)
    # Rounding the running sum distributes all rows, and gives no member more than its size.
    given, before, passed = {}, 0, 0
    for worker, size in sorted(sizes.items()):
        passed += size
        upto = -(-rows * passed // together)
        given[worker], before = upto - before, upto
    return given, left - rows <= global_batch % rounds


class GlobalBatch:
    """Pushes of complete rounds that wait for a step.

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

    def first_round(self, number: int) -> int:
        """The first round of the step to which a round with this number belongs."""
        return min([number, *(push.share.round for push in self._waiting if push.share is not None)])

    def take_ended(self, pushes: Sequence[Pushed]) -> list[Pushed]:
        """Takes pushes of a step that other servers have ended incomplete: a new round begins another one.

        If a worker leaves servers while another one joins them, only some servers have no member for a moment.
        """
        begins = max((push.share.step_begins for push in pushes if push.share is not None), default=-1)
        ended = [push for push in self._waiting if push.share is not None and push.share.round < begins]
        self._waiting = [push for push in self._waiting if push not in ended]
        return ended

    def add(self, pushes: Sequence[Pushed]) -> list[Pushed]:
        """Adds a round; returns all pushes of its step if the round completes it.

        This depends on shares, not on this server's counts, so that all servers take a step after the same round.
        Pushes without shares make a step when they have enough rows.
        """
        self._waiting.extend(pushes)
        given = [push.share for push in pushes if push.share is not None]
        if any(share.is_last for share in given) or (not given and self._planned >= self._samples):
            return self.take()
        return []

    def take(self) -> list[Pushed]:
        """All waiting pushes, however few."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def drop(self, worker: WorkerProcess) -> None:
        """Drops the worker's waiting pushes."""
        self._waiting = [push for push in self._waiting if push.worker != worker]
