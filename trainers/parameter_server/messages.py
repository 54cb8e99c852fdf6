"""Messages between workers and parameter servers.

Every request with arrays carries a `Stamp`. Rows of all tables travel in one frame, in the order of the table plan:

    Pull     → counts [T] int32 (ids per table), ids [U] int64
    Rows     ← rows [sum of U_g * D_g] float32 (group after group), dense [S] float32 or empty
    Push     → counts [T], ids [U], gradients [sum of U_g * D_g] float32, sightings [U] int32 or empty,
               dense gradient [S] float32 or empty
    PushPull → the five arrays of a Push and the two of a Pull; the Pull is answered after the Push
    InitDense→ this server's share [S] float32 of the initial dense vector

A training pull changes nothing: for a row that does not exist yet, the answer is its first value (zero while its id is
below `admit_after` sightings), and the push of its gradient creates it. The answer to a `read_only` pull (evaluation)
is zero for every row that was never trained, exactly as an exported model does for ids that are not in its tables.
"""

from __future__ import annotations

import msgspec

from elastrec.platform.transport.messages.directive import RoutingTable
from elastrec.platform.transport.messages.job import Message, TableUsage

SplitKey = tuple[str, int]
"""Stream and number of a split."""
WHOLE = 2**63 - 1
"""The offset of a split that is applied as a whole."""


class Stamp(msgspec.Struct, frozen=True, array_like=True):
    """The sender of a request, its routing epoch and generation, and the version of the directive that it follows."""

    worker: str
    incarnation: str
    epoch: int
    generation: int
    version: int = -1


class Share(msgspec.Struct, frozen=True, array_like=True):
    """A worker's share of a round of bsp; see global_batch.

    Attributes:
        round: number of the round, equal on all servers.
        rows: of the worker's minibatch.
        is_last: the round completes a step.
        step_begins: number of the step's first round; -1: not known.
    """

    round: int
    rows: int
    is_last: bool
    step_begins: int = -1


class Pull(Message, frozen=True):
    """Rows, and this server's share of the dense parameters if `dense`. Blocks with ssp while the worker is too far."""

    stamp: Stamp
    read_only: bool = False
    dense: bool = False


class Origin(msgspec.Struct, frozen=True, array_like=True):
    """The rows of the training data of a push: they identify the push, independently of the sending worker and the
    time.

    Offsets count rows of the split as `ShardProgress.offset` does. Minibatches of a split are trained in its order.

    Attributes:
        stream, number: of the split.
        attempt: of the lease.
        begin: the end of the previous push of the same attempt; of an attempt's first push: the beginning of the
            attempt.
        end: after the last row.
        is_first: of the attempt.
        is_last: of the split.
    """

    stream: str
    number: int
    attempt: int
    begin: int
    end: int
    is_first: bool
    is_last: bool

    @property
    def split(self) -> SplitKey:
        return self.stream, self.number


class Rows(Message, frozen=True):
    """Answer to Pull, and to PushPull.

    Attributes:
        offsets: as `Applied.offsets`, for a PushPull.
    """

    offsets: list[int] = []


class Push(Message, frozen=True):
    """Gradients of one step. Rows count once: a push of rows that are already applied, or wait for it, changes nothing.

    Answered when the worker may continue: immediately, or with bsp when the push's round is complete.

    Attributes:
        samples: rows of the batch; in bsp the gradients of a round are averaged with these weights.
        number: of the push in the worker's process, from 1, so that its clock in ssp counts each push once.
        also: other splits for which the answer contains offsets.
        share: with bsp, the share of the rows in a round; None: it requested none.
        rate_scale: a factor of the learning rates of this step; of a step of bsp the mean, weighted by rows.
        leaves: with bsp, whether other workers do not wait for this one after this round, until it joins again.
        batch_size: with bsp, the maximum of rows in the worker's next minibatch; 0: it requests no share.
        closed: splits that have ended without another push, and the ends of their last pushes.
    """

    stamp: Stamp
    origin: Origin
    samples: int
    number: int
    also: list[SplitKey] = []
    closed: list[tuple[str, int, int]] = []
    share: Share | None = None
    leaves: bool = False
    batch_size: int = 0
    rate_scale: float = 1.0


class Applied(Message, frozen=True):
    """Answer to Push and Leave: the offsets up to which splits are applied to the parameters of this server.

    With bsp, a round may be smaller than the job's global batch; its pushes wait for the rounds that complete the step.
    So the offset may be before the answered push.

    Attributes:
        offsets: of the push's split and those of `Push.also`, or of those of `Leave.waiting`: every push that ends
            there or before is applied. -1: none; WHOLE: all.
        share: of the open round, if the worker requested one and takes part.
    """

    offsets: list[int]
    share: Share | None = None


class Missing(Message, frozen=True):
    """Answer to Push: the previous push of the same attempt is missing; send both again, in their order.

    Attributes:
        offset: that the split has reached here; -1: none.
    """

    offset: int


class PushPull(Message, frozen=True):
    """A push and the following pull in one round trip; may be repeated like a Push, because its pull changes
    nothing."""

    push: Push
    pull: Pull


class Parameter(msgspec.Struct, frozen=True, array_like=True):
    """One dense parameter; its elements follow those of the previous one in the flat vector."""

    name: str
    shape: tuple[int, ...]


class InitDense(Message, frozen=True):
    """Initial dense values. Those of the first worker are used, but values of a record with the same name, shape and
    meaning override them."""

    stamp: Stamp
    layout: list[Parameter]


class Initialised(Message, frozen=True):
    """Answer to InitDense.

    Attributes:
        fresh: whether this call has set the values.
        steps: number of steps of the dense parameters, including recorded ones if they are known.
    """

    fresh: bool
    steps: int = 0


class Join(Message, frozen=True):
    """The worker takes part in bsp and ssp from now on. Training requests join implicitly.

    Attributes:
        round: with bsp, no server waits for the worker before this round.
        batch_size: as `Push.batch_size`. The answer to a worker that asks for a share comes when its round is open, or
            after a second.
    """

    stamp: Stamp
    round: int = -1
    batch_size: int = 0


class Leave(Message, frozen=True):
    """The worker does not pull or push for a while, and no server waits for it. Its waiting pushes stay valid.

    When the last member leaves, the server takes a step with the waiting pushes. A repetition requests the applied
    offsets.

    Attributes:
        waiting: pushes of the worker that may not be applied yet; `Stale` when the server has dropped one.
    """

    stamp: Stamp
    waiting: list[Origin] = []


class Accepted(Message, frozen=True):
    """Answer to Join.

    Attributes:
        round: with bsp, the first one that waits for the worker.
        share: of that round, if the worker requested one; None: it has none yet, and must ask again.
    """

    round: int = -1
    share: Share | None = None


class Stale(Message, frozen=True):
    """The request cannot be taken under this stamp.

    Its routing epoch or generation differs from the server's, or the server has not restored yet, or (`named` is false)
    the worker's process is not in the master's list of members: the master has given it up, or it has nothing to train
    in bsp and ssp.

    Attributes:
        routing: the server's, when it serves under a newer epoch of the request's generation.
    """

    epoch: int
    generation: int
    ready: bool
    named: bool = True
    routing: RoutingTable | None = None


class Blocked(Message, frozen=True):
    """Other workers are still behind; send the same request again."""


class GetStats(Message, frozen=True):
    """A plain call that requests the server's statistics."""


class Stats(Message, frozen=True):
    """Answer to GetStats.

    Attributes:
        steps_by_rows: number of steps by their number of rows, since the process started.
    """

    epoch: int
    generation: int
    tables: list[TableUsage]
    dense_parameters: int
    pulls: int
    pushes: int
    rounds: int
    members: list[str]
    steps_by_rows: dict[int, int] = {}


REQUESTS: tuple[type[Message], ...] = (Pull, Push, PushPull, InitDense, Join, Leave)
"""The requests of a server's stream."""
ANSWERS: tuple[type[Message], ...] = (Rows, Applied, Missing, Initialised, Accepted, Stale, Blocked)
"""The answers of a stream."""
