"""What workers and parameter servers say to each other.

Every request with arrays carries a `Stamp`. Rows of all tables travel in one frame, in the order of the table plan:

    Pull     → counts [T] int32 (ids per table), ids [U] int64
    Rows     ← rows [sum of U_g * D_g] float32 (group after group), dense [S] float32 or empty
    Push     → counts [T], ids [U], gradients [sum of U_g * D_g] float32, sightings [U] int32 or empty,
               dense gradient [S] float32 or empty
    PushPull → the five arrays of a Push and the two of a Pull; the Pull is answered after the Push
    InitDense→ this server's share [S] float32 of the initial dense vector

A training pull changes nothing: a row that does not exist yet is answered with its first value (zero while its id is
below `admit_after` sightings), and is made by the push of its gradient. A `read_only` pull (evaluation) answers zero
for every row that was never trained, exactly as an exported model does for ids that its tables do not hold.
"""

from __future__ import annotations

import msgspec

from elastrec.platform.transport.messages.job import Message, RoutingTable, TableUsage

SplitKey = tuple[str, int]
"""Stream and number of a split."""
WHOLE = 2**63 - 1
"""The offset of a split that is applied as a whole."""


class Stamp(msgspec.Struct, frozen=True, array_like=True):
    """Who asks, which routing and generation it believes in, and the version of the directive that it acts on."""

    worker: str
    incarnation: str
    epoch: int
    generation: int
    version: int = -1


class Share(msgspec.Struct, frozen=True, array_like=True):
    """What a worker contributes to a round of bsp; see global_batch.

    Attributes:
        round: number of the round, alike on all servers.
        rows: of the worker's minibatch.
        is_last: the round completes a step.
    """

    round: int
    rows: int
    is_last: bool


class Pull(Message, frozen=True):
    """Rows, and this server's share of the dense parameters if `dense`. Blocks with ssp while the worker is too far."""

    stamp: Stamp
    read_only: bool = False
    dense: bool = False


class Origin(msgspec.Struct, frozen=True, array_like=True):
    """Which rows of the training data a push comes from: it identifies the push, whichever worker sends it and when.

    Offsets count rows of the split as `ShardProgress.offset` does. Minibatches of a split are trained in its order.

    Attributes:
        stream, number: of the split.
        attempt: of the lease.
        begin: where the push before it ends, of the same attempt; of an attempt's first push: where the attempt began.
        end: behind the last row.
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
    """Gradients of one step. Rows count once: a push of rows that are applied, or wait to be, changes nothing.

    Answered once the worker may go on: at once, or with bsp when the push's round is complete.

    Attributes:
        samples: rows of the batch; in bsp the gradients of a round are averaged with these weights.
        number: of the pushes of the worker's process, 1 is its first: by it its clock in ssp counts each push once.
        also: other splits that the answer is to speak of.
        share: with bsp, the share of a round that the rows are; None: it asked for none.
        rate_scale: a factor of the learning rates of this step; of a step of bsp the mean, weighted by rows.
        leaves: with bsp, others do not wait for the worker after this round, until it joins again.
        batch_size: with bsp, the most rows that the worker takes into its next minibatch; 0: asks for no share.
        closed: splits that have ended without another push, and where their last push ends.
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
    """Answer to Push and Leave: how far splits are in the parameters of this server.

    With bsp a round may be smaller than the job's global batch; its pushes wait for the rounds that complete the step.
    So the offset may be one before the push that is answered.

    Attributes:
        offsets: of the push's split and those of `Push.also`, or of those of `Leave.waiting`: every push that ends
            there or before is applied. -1: none; WHOLE: all.
        share: of the open round, where the worker asked for one and takes part.
    """

    offsets: list[int]
    share: Share | None = None


class Missing(Message, frozen=True):
    """Answer to Push: the push before it, of the same attempt, is not here; send both again, in their order.

    Attributes:
        offset: that the split has reached here; -1: none.
    """

    offset: int


class PushPull(Message, frozen=True):
    """A push and the pull that follows it in one round trip; repeated like a Push, for its pull changes nothing."""

    push: Push
    pull: Pull


class Parameter(msgspec.Struct, frozen=True, array_like=True):
    """One dense parameter; its elements follow those of the one before in the flat vector."""

    name: str
    shape: tuple[int, ...]


class InitDense(Message, frozen=True):
    """Initial dense values; the first worker's win, and a record's values win over them by name and shape."""

    stamp: Stamp
    layout: list[Parameter]


class Initialised(Message, frozen=True):
    """Answer to InitDense.

    Attributes:
        fresh: this call set the values.
        steps: that the dense parameters have taken, those of their record included where it knows them.
    """

    fresh: bool
    steps: int = 0


class Join(Message, frozen=True):
    """The worker takes part in bsp and ssp from now on. Training requests join by themselves.

    Attributes:
        round: with bsp, no server waits for the worker before this round.
        batch_size: as `Push.batch_size`. The answer to a worker that asks for a share comes when its round is open, or
            after a second.
    """

    stamp: Stamp
    round: int = -1
    batch_size: int = 0


class Leave(Message, frozen=True):
    """The worker will neither pull nor push for a while, and no server waits for it. Its waiting pushes stay valid.

    When the last member leaves, the server takes a step with what waits. Sent again, it asks for what is applied.

    Attributes:
        waiting: pushes of the worker that it does not know to be applied; `Stale` when the server has dropped one.
    """

    stamp: Stamp
    waiting: list[Origin] = []


class Accepted(Message, frozen=True):
    """Answer to Join.

    Attributes:
        round: with bsp, the first that waits for the worker.
        share: of that round, where the worker asked for one; None: it has none yet, and asks again.
    """

    round: int = -1
    share: Share | None = None


class Stale(Message, frozen=True):
    """The request cannot be taken under this stamp.

    It names another routing epoch or generation than the server's, or the server has not restored yet, or (`named` is
    false) the master's list of members omits the worker's process: it gave the process up, or has nothing for it to
    train in bsp and ssp.

    Attributes:
        routing: the server's, when it serves under a newer epoch of the request's generation.
    """

    epoch: int
    generation: int
    ready: bool
    named: bool = True
    routing: RoutingTable | None = None


class Blocked(Message, frozen=True):
    """Others are still behind; send the same request again."""


class GetStats(Message, frozen=True):
    """A plain call: what the server holds."""


class Stats(Message, frozen=True):
    """Answer to GetStats.

    Attributes:
        steps_by_rows: how many steps have had so many rows, since the process started.
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
"""What a server's stream takes."""
ANSWERS: tuple[type[Message], ...] = (Rows, Applied, Missing, Initialised, Accepted, Stale, Blocked)
"""What a stream may answer."""
