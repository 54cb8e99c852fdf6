"""The workers that may push, the waiting pushes, the pushes of a step, and the parts of them to apply.

A push is identified by its rows (`Origin`). It is *taken*, *released* (its worker may continue) and *applied*; `marks`,
which belong to the parameters, contain the applied ones. Locks, clocks and parameters do not belong here: the server
calls everything under its condition.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import structlog

from elastrec.platform.specs.job import JobSpec
from elastrec.platform.transport.messages.directive import WorkerProcess
from elastrec.trainers.parameter_server.messages import Origin, Push, Share, SplitKey
from elastrec.trainers.parameter_server.serving.attendance import Attendance, Attending, joined
from elastrec.trainers.parameter_server.serving.consistency import Consistency, Round
from elastrec.trainers.parameter_server.serving.global_batch import GlobalBatch, Pushed
from elastrec.trainers.parameter_server.serving.marks import Marks

log = structlog.get_logger(__name__)

_Key = tuple[str, int, int]


@dataclass(frozen=True)
class Step:
    """One step of the optimisers.

    Attributes:
        round: pushes whose workers may continue after it; `pushes`: those that it applies, with bsp also of earlier
            rounds.
    """

    round: Sequence[Pushed]
    pushes: Sequence[Pushed]


class Standing(Enum):
    """The state of a push on a server."""

    APPLIED = auto()
    RELEASED = auto()  # its worker may continue, it is applied later
    WAITING = auto()
    MISSING = auto()  # the previous push has not arrived
    UNKNOWN = auto()


def _key(origin: Origin) -> _Key:
    return origin.stream, origin.number, origin.end


class Pushes:
    """The pushes of one server since it began to serve its place.

    Args:
        marks: of applied pushes.

    Attributes:
        is_stepping: whether a thread applies steps.
        pulls, pushes, rounds: their numbers.
    """

    def __init__(self, spec: JobSpec, marks: Marks) -> None:
        self.marks = marks
        consistency = spec.training.consistency
        self.consistency = Consistency(consistency.mode, consistency.staleness)
        self.is_synchronous = consistency.mode == "bsp"
        self.is_stepping = False
        self._taken: dict[_Key, Pushed] = {}
        self._held: dict[int, Pushed] = {}
        self._counted: dict[WorkerProcess, int] = {}  # number of the last push, see messages.Push
        self._next_token = 0
        self._steps: deque[Step] = deque()
        self._batch_size = spec.training.batch_size
        self._batch = GlobalBatch(spec.training.batch_size * spec.resources.worker.count)
        self._batch_sizes: dict[WorkerProcess, int] = {}
        self._shares: dict[WorkerProcess, Share] = {}

    @property
    def waiting(self) -> int:
        """Pushes that are taken and not applied."""
        return len(self._taken)

    def standing(self, origin: Origin) -> Standing:
        """The state of a push that arrives or is requested."""
        if self.marks.offset(origin.split) >= origin.end:
            return Standing.APPLIED
        taken = self._taken.get(_key(origin))
        if taken is not None:
            return Standing.RELEASED if taken.is_released else Standing.WAITING
        if not origin.is_first and self._reached(origin.split) < origin.begin:
            return Standing.MISSING
        return Standing.UNKNOWN

    def _reached(self, split: SplitKey) -> int:
        """The offset up to which pushes of a split are applied or wait."""
        ends = (end for stream, number, end in self._taken if (stream, number) == split)
        return max(self.marks.offset(split), max(ends, default=-1))

    def offsets(self, splits: Iterable[SplitKey]) -> list[int]:
        """See messages.Applied."""
        return [self.marks.offset(split) for split in splits]

    def take(self, push: Pushed, request: Push) -> None:
        """Accepts an unknown push of a member; with bsp, this may complete its round (`next_step`)."""
        if repeated := self.marks.repeated_rows(push.origin):
            log.warning("rows_repeated", origin=str(push.origin), rows=repeated, reason="other minibatches than before")
        self._taken[_key(push.origin)] = push
        if self.is_synchronous:
            number = -1 if push.share is None else push.share.round
            push.round = max(number, self.consistency.round)
            token, self._next_token = self._next_token, self._next_token + 1
            self._held[token] = push
            self._batch_sizes[push.worker] = request.batch_size or self._batch_size
            if request.leaves:
                self.consistency.leave_after_push(push.worker)
            self._queue(self.consistency.push(push.worker, token, number))

    def share(self, worker: WorkerProcess) -> Share | None:
        """The worker's share of the open round of bsp, distributed at the first request; None: it has none."""
        consistency = self.consistency
        if not self.is_synchronous or not consistency.is_awaited(worker):
            return None
        if not consistency.is_shared_out:
            sizes = {member: self._batch_sizes.get(member, self._batch_size) for member in consistency.awaited}
            rows, is_last = self._batch.plan(sizes)
            number = consistency.round
            begins = self._batch.first_round(number)
            self._shares = {member: Share(number, n, is_last, begins) for member, n in rows.items() if n}
            consistency.open_round(without=[member for member, n in rows.items() if not n])
        share = self._shares.get(worker)
        return share if share is not None and share.round == consistency.round else None

    def advance(self, worker: WorkerProcess, number: int, batch_size: int) -> None:
        """Sets the first round that waits for a member, and its maximum of rows `batch_size`; 0: as in the job file.

        A member with a batch size requests a share, because it has sent all of its pushes.
        """
        self._batch_sizes[worker] = batch_size or self._batch_size
        if self.is_synchronous:
            if batch_size and self.consistency.is_shared_out:
                # After a move, a round may be open again that was distributed among others before the worker joined.
                share = self._shares.get(worker)
                number = max(number, self.consistency.shared_out + 1 if share is None else share.round)
            self._queue(self.consistency.advance(worker, number))

    def close(self, request: Push) -> None:
        """Records splits that have ended without another push."""
        for stream, number, end in request.closed:
            self.marks.close((stream, number), end)

    def give_up(self, push: Pushed) -> None:
        """Drops a push that could not be applied, so that it is unknown again."""
        self._taken.pop(_key(push.origin), None)

    def applied(self, pushes: Iterable[Pushed]) -> None:
        """Records that these pushes are applied."""
        for push in pushes:
            self._taken.pop(_key(push.origin), None)
            self.marks.advance(push.origin)

    def count(self, worker: WorkerProcess, number: int) -> None:
        """Records that the rows of a push are applied, by it or an earlier one: with ssp, its worker's clock counts it
        once."""
        if self.consistency.is_member(worker) and number > self._counted.get(worker, 0):
            self._counted[worker] = number
            self.consistency.push(worker, 0)

    def begin_again(self) -> None:
        """Drops unapplied pushes, because buckets change servers and workers send them again to the new owners.

        The open round is then the first one of the incomplete step.
        """
        pushed: dict[WorkerProcess, int] = {}
        for push in self._taken.values():
            pushed[push.worker] = min(pushed.get(push.worker, push.round), push.round)
        self._taken.clear()
        self._held.clear()
        self._steps.clear()
        self._batch.take()
        self.consistency.go_back(pushed)

    def attendance(self) -> Attendance:
        """The attendance, for servers that take over buckets from this one."""
        consistency = self.consistency
        return Attendance(
            round=consistency.round,
            shared_out=consistency.shared_out,
            members=[
                Attending(
                    worker=worker,
                    joined_at=consistency.joined_at(worker),
                    clock=consistency.clock(worker),
                    counted=self._counted.get(worker, 0),
                    first_round=consistency.first_round(worker),
                    batch_size=self._batch_sizes.get(worker, 0),
                )
                for worker in consistency.members
            ],
            shares=sorted(self._shares.items()),
            left=consistency.left,
        )

    def attend(self, found: Sequence[Attendance]) -> None:
        """Continues with the attendance from the old owners of buckets, after `begin_again`; see `joined`."""
        together = joined(found)
        self.consistency.resume(together.round, together.shared_out, together.members)
        self._counted = {member.worker: member.counted for member in together.members}
        self._batch_sizes = {member.worker: member.batch_size for member in together.members if member.batch_size}
        self._shares = dict(together.shares)

    def next_step(self) -> Step | None:
        """The next step of bsp; steps are applied in their order."""
        return self._steps.popleft() if self._steps else None

    @property
    def has_steps(self) -> bool:
        return bool(self._steps)

    def leave(self, worker: WorkerProcess) -> None:
        """Removes the worker from the rounds; its pushes stay."""
        self._queue(self.consistency.leave(worker))

    def confirm(self, members: Sequence[WorkerProcess], version: int) -> list[WorkerProcess]:
        """Applies the master's list of members; returns the dropped ones, whose unapplied pushes are void."""
        dropped = self.consistency.confirm(members, version)
        for worker in dropped:
            self._counted.pop(worker, None)
            tokens, rounds = self.consistency.drop(worker)
            for token in tokens:
                del self._held[token]
            self._batch.drop(worker)
            self._batch_sizes.pop(worker, None)
            void = [key for key, push in self._taken.items() if push.worker == worker]
            for key in void:
                del self._taken[key]
            log.info("member_dropped", worker=worker.pod, incarnation=worker.incarnation, pushes_void=len(void))
            self._queue(rounds)
        return dropped

    def _queue(self, rounds: Sequence[Round]) -> None:
        for members in rounds:
            pushes = [self._held.pop(token) for _, token in members]
            if ended := self._batch.take_ended(pushes):
                self._steps.append(Step([], ended))
            self._steps.append(Step(pushes, self._batch.add(pushes)))
        if self.is_synchronous and not self.consistency.members:
            self._steps.append(Step([], self._batch.take()))  # no worker is left to fill the step
