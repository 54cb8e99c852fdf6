"""The members of a server's steps and their progress, which move to another server together with buckets.

Gradients do not move: a worker keeps its pushes until all servers have applied them, and sends them again, laid out for
the new owners. So a server whose buckets change drops the pushes that it has not applied, and waits in the same rounds
for the same workers. Locks, clocks, input and output do not belong here.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from elastrec.platform.transport.messages.directive import WorkerProcess
from elastrec.trainers.parameter_server.messages import Share


class Attending(msgspec.Struct, frozen=True, array_like=True):
    """One member; see Consistency.

    Attributes:
        joined_at: version of the directive by which it joined.
        clock, counted: its clock, and the number of the last push in it.
        first_round: with bsp, no round before this one waits for it.
        batch_size: maximum of rows of its share; 0: as in the job file.
    """

    worker: WorkerProcess
    joined_at: int
    clock: int
    counted: int
    first_round: int
    batch_size: int


class Attendance(msgspec.Struct, frozen=True):
    """All members of one server.

    Attributes:
        round: with bsp, the open one.
        shared_out: with bsp, the last round whose rows are distributed; -1: none on this server.
        shares: of that round.
        left: workers that were members, and may be again.
    """

    round: int = 0
    shared_out: int = -1
    members: list[Attending] = []
    shares: list[tuple[WorkerProcess, Share]] = []
    left: list[WorkerProcess] = []

    def first_round_of_strangers(self, worker: WorkerProcess) -> int:
        """The first possible round of a worker that is unknown to this server; -1: it is known."""
        is_known = worker in self.left or any(member.worker == worker for member in self.members)
        return -1 if is_known else self.round


def joined(found: Sequence[Attendance]) -> Attendance:
    """The attendance of a server that now has buckets of several others.

    A round is open until all of them have completed it: the marks of their buckets contain the parts that some have
    applied.

    Args:
        found: at least one; its own first, if it has served.
    """
    counting = next((each for each in found if each.members), found[0])
    sharing = max(found, key=lambda each: each.shared_out)
    sizes = {member.worker: member.batch_size for member in sharing.members}
    slowest = min((member.clock for member in counting.members), default=0)
    # Servers began to count at different times, so that their clocks cannot be compared.
    clocks = {member.worker: (member.clock, member.counted) for member in counting.members}
    members: dict[WorkerProcess, Attending] = {}
    for member in (member for each in found for member in each.members):
        clock, counted = clocks.get(member.worker, (slowest, member.counted))
        known = members.get(member.worker, member)
        members[member.worker] = Attending(
            worker=member.worker,
            joined_at=max(known.joined_at, member.joined_at),
            clock=clock,
            counted=counted,
            first_round=min(known.first_round, member.first_round),
            batch_size=sizes.get(member.worker, member.batch_size),
        )
    for worker, member in members.items():
        # Rounds that one of the servers has completed before the worker joined are without the worker on all servers.
        first = max(member.first_round, *(each.first_round_of_strangers(worker) for each in found))
        members[worker] = msgspec.structs.replace(member, first_round=first)
    return Attendance(
        round=min(each.round for each in found),
        shared_out=sharing.shared_out,
        members=[members[worker] for worker in sorted(members)],
        shares=sharing.shares,
    )
