"""ParameterClient: a worker's connection to all parameter servers of its job.

    client = ParameterClient(plan, worker="w0", incarnation=hex, token=token, layout=flat.layout)
    client.connect(directive.routing, directive.generation)     # again whenever one of the two changes
    client.follow(directive.version)                            # whenever the directive changes
    client.init_dense(flat.values)                              # first worker wins; idempotent
    pulled = client.pull(client.router.route(...), dense=True)  # returns at once
    rows = pulled.rows()                                        # waits
    client.push(pulled, row_gradients, dense_gradient, samples, hold=True)  # leaves with the next pull, or `release`
    client.leave()                                              # nobody waits for this worker now
    client.pushes_applied                                       # how many pushes are in the parameters

Requests to one server are answered in the order in which they were made: a pull made after a push sees it. Errors of a
push surface at the next `pull`, `push` or `flush`. `RoutingChangedError`: wait for a newer directive, then `connect`.
One thread uses a client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import msgspec
import numpy as np

from elastrec.platform.transport import TlsConfig
from elastrec.platform.transport.frames import Joined
from elastrec.platform.transport.job_messages import RoutingTable
from elastrec.trainers.embedding.lane import Lane, Reply, RoutingChangedError
from elastrec.trainers.embedding.routing import RoutedIds, Router
from elastrec.trainers.parameter_server.dense_slice import layout_size, slice_bounds
from elastrec.trainers.parameter_server.messages import (
    Applied,
    InitDense,
    Join,
    Leave,
    Parameter,
    Pull,
    Push,
    PushPull,
    Rows,
    Stamp,
)
from elastrec.trainers.parameter_server.plan import TablePlan

__all__ = ["ParameterClient", "Pulled", "RoutingChangedError"]

Array = np.ndarray[Any, Any]


class Pulled:
    """Rows on their way.

    Attributes:
        routed: the ids that were asked for.
    """

    def __init__(self, routed: RoutedIds, dimensions: Sequence[int], replies: Sequence[Future[Reply]]) -> None:
        self.routed = routed
        self._dimensions = dimensions
        self._replies = replies
        self._answers: list[list[Array]] | None = None
        self._rows: list[Array] | None = None

    def _wait(self) -> list[list[Array]]:
        if self._answers is None:
            self._answers = [reply.result()[1] for reply in self._replies]
        return self._answers

    @property
    def is_done(self) -> bool:
        return all(reply.done() for reply in self._replies)

    def rows(self) -> list[Array]:
        """Per table group, values [U_g, D_g] float32, read-only. Waits.

        Raises:
            RoutingChangedError: wait for a newer directive, then connect.
            TransportError: a server refused.
        """
        if self._rows is None:
            parts: list[list[Array]] = [[] for _ in self._dimensions]
            for server, (flat, _) in enumerate(self._wait()):
                at = 0
                for group, dimension in enumerate(self._dimensions):
                    count = int(self.routed.group_sizes[group, server])
                    parts[group].append(flat[at : at + count * dimension].reshape(count, dimension))
                    at += count * dimension
            self._rows = [each[0] if len(each) == 1 else np.concatenate(each) for each in parts]
        return self._rows

    def dense(self) -> Array:
        """The flat dense vector [P] float32 (empty unless it was asked for). Waits; raises like `rows`."""
        slices = [arrays[1] for arrays in self._wait()]
        return slices[0] if len(slices) == 1 else np.concatenate(slices)

    @property
    def bytes(self) -> int:
        """Bytes received. Waits."""
        return sum(array.nbytes for arrays in self._wait() for array in arrays)


class ParameterClient:
    """See the module's text.

    Args:
        plan: the job's tables (`plan_of_job`).
        worker, incarnation: the pod's name and a random word per process.
        layout: the dense parameters in the order of the flat vector; may be set later, before `init_dense`.
        patience_seconds: how long a server may be out of reach before `RoutingChangedError`.
    """

    def __init__(
        self,
        plan: TablePlan,
        *,
        worker: str,
        incarnation: str,
        token: str,
        tls: TlsConfig | None = None,
        layout: Sequence[Parameter] = (),
        patience_seconds: float = 10.0,
    ) -> None:
        self.plan = plan
        self.layout = list(layout)
        self._worker, self._incarnation = worker, incarnation
        self._token, self._tls = token, tls
        self._patience_seconds = patience_seconds
        self._dimensions = [group.dimension for group in plan.groups]
        self._lanes: list[Lane] = []
        self._stamp: Stamp | None = None
        self._router: Router | None = None
        self._version = -1
        self._sequence = 0
        self._first = 0  # the first sequence of this connection
        self._applied: list[int] = []  # by server, the highest sequence that is in its parameters
        self._pushes: deque[list[Future[Reply]]] = deque()
        self._held: tuple[Push, list[list[Array | Joined]]] | None = None

    # Connection

    def connect(self, routing: RoutingTable, generation: int) -> None:
        """Forgets everything in flight and speaks to the servers of this routing from now on.

        Raises:
            RoutingChangedError: a server of the routing has no address yet.
        """
        self.abort()
        if not all(routing.addresses):
            raise RoutingChangedError(f"the routing of epoch {routing.epoch} has servers without an address")
        self._stamp = Stamp(self._worker, self._incarnation, routing.epoch, generation, self._version)
        self._router = Router(self.plan, routing.owners, len(routing.servers), routing.epoch, generation)
        self._first = self._sequence
        self._applied = [self._sequence - 1] * len(routing.servers)
        self._lanes = [
            Lane(server, address, self._token, self._tls, self._stamp, self._patience_seconds)
            for server, address in zip(routing.servers, routing.addresses, strict=True)
        ]

    def follow(self, version: int) -> None:
        """Requests from now on are made under the directive of this version."""
        self._version = version
        if self._stamp is not None:
            self._stamp = msgspec.structs.replace(self._stamp, version=version)

    @property
    def router(self) -> Router:
        """Lays out ids under the current routing.

        Raises:
            RoutingChangedError: not connected.
        """
        if self._router is None:
            raise RoutingChangedError("not connected to any parameter server; call connect with a directive's routing")
        return self._router

    def abort(self) -> None:
        """Drops the connections with everything in flight; pushes that were not flushed may or may not be applied."""
        for lane in self._lanes:
            lane.close()
        self._lanes, self._router, self._stamp, self._held = [], None, None, None
        self._pushes.clear()
        self._applied = []

    def close(self, timeout_seconds: float = 5.0) -> None:
        """`abort`, and waits for the threads."""
        lanes = self._lanes
        self.abort()
        for lane in lanes:
            lane.join(timeout_seconds)

    # Training

    def init_dense(self, values: Array) -> int:
        """Offers initial values [P] float32 to the servers; returns once all have some: a record's, others' or these.

        Returns how many steps the dense parameters have taken.

        Call it after every `connect` to a new generation. Raises like `flush`.
        """
        total = layout_size(self.layout)
        if values.shape != (total,):
            raise ValueError(f"values of shape {values.shape} for a layout of {total} elements")
        stamp = self._require_stamp()
        self.release()
        replies = []
        for server, lane in enumerate(self._lanes):
            start, end = slice_bounds(total, server, len(self._lanes))
            replies.append(lane.send(InitDense(stamp=stamp, layout=self.layout), [values[start:end].copy()]))
        return max(reply.result()[0].steps for reply in replies)

    def pull(self, routed: RoutedIds, *, read_only: bool = False, dense: bool = False) -> Pulled:
        """Asks for the rows of `routed`, and the dense parameters if `dense`; returns at once."""
        self._raise_failures()
        stamp = self._require_stamp()
        self._check_layout(routed)
        pull = Pull(stamp=stamp, read_only=read_only, dense=dense)
        message: Pull | PushPull = pull
        arrays: list[list[Array | Joined]]
        arrays = [[routed.counts[server], routed.of_server(server, routed.ids)] for server in range(len(self._lanes))]
        held, self._held = self._held, None
        if held is not None:
            message = PushPull(push=held[0], pull=pull)
            arrays = [pushed + asked for pushed, asked in zip(held[1], arrays, strict=True)]
        replies = self._send(message, arrays)
        if held is not None:
            self._pushes.append(replies)
        return Pulled(routed, self._dimensions, replies)

    def push(
        self,
        pulled: Pulled,
        row_gradients: Sequence[Array],
        dense_gradient: Sequence[Array] | None,
        samples: int,
        *,
        hold: bool = False,
    ) -> int:
        """Sends the gradients of one step to every server; returns at once with the number of bytes.

        The arrays must not change until the push is applied.

        Args:
            row_gradients: per table group [U_g, D_g] float32, laid out like `pulled.rows()`; not copied.
            dense_gradient: [P] float32 in parts that follow each other (`FlatParameters.gradients`), not copied; None
                for none.
            samples: rows of the batch.
            hold: send it together with the next `pull`, in one round trip. Others may wait for this push: when no pull
                follows at once, call `release`.
        """
        self._raise_failures()
        self.release()
        routed, stamp, servers = pulled.routed, self._require_stamp(), len(self._lanes)
        self._check_layout(routed)
        message = Push(stamp=stamp, sequence=self._sequence, samples=samples)
        self._sequence += 1
        dense = [np.ascontiguousarray(part, np.float32) for part in dense_gradient or ()]
        total = sum(len(part) for part in dense)
        nothing, starts, sent = np.empty(0, np.int32), [0] * len(row_gradients), 0
        shares: list[list[Array | Joined]] = []
        for server in range(servers):
            runs = []
            for group, gradients in enumerate(row_gradients):
                end = starts[group] + int(routed.group_sizes[group, server])
                runs.append(gradients[starts[group] : end].reshape(-1))
                starts[group] = end
            arrays: list[Array | Joined] = [
                routed.counts[server],
                routed.of_server(server, routed.ids),
                runs[0] if len(runs) == 1 else np.concatenate(runs),
                routed.of_server(server, routed.sightings) if self.plan.counts_sightings else nothing,
                _run_of(dense, *slice_bounds(total, server, servers)),
            ]
            sent += sum(array.nbytes for array in arrays)
            shares.append(arrays)
        self._held = message, shares
        if not hold:
            self.release()
        return sent

    def release(self) -> None:
        """Sends the push that waits for a pull, if there is one; returns at once."""
        if self._held is not None:
            held, self._held = self._held, None
            self._pushes.append(self._send(*held))

    def flush(self) -> None:
        """Waits until every push is answered: applied, or with bsp waiting for a whole step (see `pushes_applied`).

        Raises:
            RoutingChangedError: wait for a newer directive, then connect; the pushes may or may not be applied.
            TransportError: a server refused.
        """
        self.release()
        while self._pushes:
            self._take_answers(self._pushes[0])
            self._pushes.popleft()

    @property
    def pushes_applied(self) -> int:
        """How many of this client's pushes, counted from its first, are known to be in the parameters. Does not wait.

        Those of earlier connections, which may or may not be applied, are counted; without a connection it is 0.
        """
        self._raise_failures()
        return min(self._applied, default=-1) + 1

    def join(self) -> None:
        """Takes part in bsp and ssp; needed only to make others wait for this worker before its first request."""
        self._take_answers(self._tell(Join(stamp=self._require_stamp())))

    def leave(self) -> None:
        """Flushes, and lets nobody wait for this worker: call it before pausing, and when there are no more shards.

        Pushes may still wait for a whole step of bsp; called again, it learns whether they were applied meanwhile.
        Raises like `flush`; RoutingChangedError also when a server has dropped pushes of this worker.
        """
        self.flush()
        last = self._sequence - 1 if self._sequence > self._first else -1
        self._take_answers(self._tell(Leave(stamp=self._require_stamp(), sequence=last)))

    def _tell(self, message: Join | Leave) -> list[Future[Reply]]:
        self.release()
        return [lane.send(message) for lane in self._lanes]

    def _take_answers(self, replies: Sequence[Future[Reply]]) -> None:
        """Waits for all servers' answers to one request and notes what they have applied."""
        for server, reply in enumerate(replies):
            answer, _ = reply.result()
            if isinstance(answer, Applied):
                self._applied[server] = max(self._applied[server], answer.sequence)
            elif isinstance(answer, Rows):
                self._applied[server] = max(self._applied[server], answer.applied)

    def _send(self, message: msgspec.Struct, arrays: Sequence[Sequence[Array | Joined]]) -> list[Future[Reply]]:
        return [lane.send(message, share) for lane, share in zip(self._lanes, arrays, strict=True)]

    def _require_stamp(self) -> Stamp:
        if self._stamp is None:
            raise RoutingChangedError("not connected to any parameter server; call connect with a directive's routing")
        return self._stamp

    def _check_layout(self, routed: RoutedIds) -> None:
        stamp = self._require_stamp()
        if (routed.epoch, routed.generation) != (stamp.epoch, stamp.generation):
            raise RoutingChangedError("these ids were laid out under an older routing; route them again")

    def _raise_failures(self) -> None:
        while self._pushes and all(reply.done() for reply in self._pushes[0]):
            self._take_answers(self._pushes.popleft())


def _run_of(parts: Sequence[Array], start: int, end: int) -> Joined:
    """Elements [start, end) of the vector that the parts make, float32."""
    taken, at = [], 0
    for part in parts:
        low, high = max(start - at, 0), min(end - at, len(part))
        if low < high:
            taken.append(part[low:high])
        at += len(part)
    return Joined(taken or [np.empty(0, np.float32)])
