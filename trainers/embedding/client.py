"""ParameterClient: a worker's connection to all parameter servers of its job.

    client = ParameterClient(plan, worker="w0", incarnation=hex, token=token, layout=flat.layout)
    client.connect(directive.routing, directive.generation)     # again whenever one of the two changes
    client.follow(directive.version)                            # whenever the directive changes
    client.init_dense(flat.values)                              # first worker wins; idempotent
    pulled = client.pull(client.router.route(...), dense=True)  # returns at once
    rows = pulled.rows()                                        # waits
    client.push(pulled, row_gradients, dense_gradient, samples, origin, hold=True)  # leaves with the next pull
    client.leave()                                              # no server waits for this worker now
    client.pushes_applied                                       # how many pushes are in the parameters

Requests to one server are answered in the order in which they were made: a pull made after a push sees it. Errors of a
push surface at the next `pull`, `push` or `flush`. `RoutingChangedError`: wait for a newer directive, then `connect`:
pushes that are not applied are sent again, pulls are not. One thread uses a client.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import msgspec
import numpy as np

from elastrec.platform.transport import StreamLoop, TlsConfig
from elastrec.platform.transport.messages.directive import RoutingTable
from elastrec.trainers.embedding.lane import Lane, Request, RoutingChangedError
from elastrec.trainers.embedding.pulled import Pulled
from elastrec.trainers.embedding.replies import results, wait_for
from elastrec.trainers.embedding.rounds import join
from elastrec.trainers.embedding.routing import RoutedIds, Router
from elastrec.trainers.embedding.unapplied import KeptPush, UnappliedPushes
from elastrec.trainers.parameter_server.dense.layout import DenseRouting, layout_size
from elastrec.trainers.parameter_server.messages import (
    InitDense,
    Leave,
    Origin,
    Parameter,
    Pull,
    Share,
    Stamp,
)
from elastrec.trainers.parameter_server.plan import TablePlan

__all__ = ["ParameterClient", "Pulled", "RoutingChangedError"]

Array = np.ndarray[Any, Any]


class ParameterClient:
    """See the module's text.

    Args:
        plan: the job's tables (`plan_of_job`).
        worker, incarnation: the pod's name and a random word per process.
        layout: the dense parameters in the order of the flat vector; may be set later, before `init_dense`.
        patience_seconds: time for which a server may be unreachable before `RoutingChangedError`.
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
        self._loop: StreamLoop | None = None  # while connected
        self._lanes: dict[str, Lane] = {}  # in the order of the routing
        self._owners: tuple[list[str], list[int], list[int]] = [], [], []
        self._dense = DenseRouting([], 0)
        self._stamp: Stamp | None = None
        self._router: Router | None = None
        self._version = -1
        self._unapplied = UnappliedPushes()
        self._held: KeptPush | None = None
        self._batch_size = 0

    # Connection

    def connect(self, routing: RoutingTable, generation: int) -> None:
        """Connects to the servers of this routing; running pulls fail.

        Connections to servers with the same address are kept. Unapplied pushes are sent again, to the present owners of
        their rows; those of another generation are dropped, because the model was rolled back.

        Raises:
            RoutingChangedError: a server of the routing has no address yet.
        """
        if not all(routing.addresses):
            raise RoutingChangedError(f"the routing of epoch {routing.epoch} has servers without an address")
        if self._stamp is not None and self._stamp.generation != generation:
            self.forget()
        self._stamp = stamp = Stamp(self._worker, self._incarnation, routing.epoch, generation, self._version)
        before, self._owners = self._owners, (routing.servers, routing.owners, routing.dense_owners)
        self._dense = DenseRouting(routing.dense_owners, len(routing.servers))
        self._router = Router(self.plan, routing.owners, len(routing.servers), routing.epoch, generation)
        self._loop = self._loop or StreamLoop("parameter-client")
        lanes, self._lanes = dict(self._lanes), {}
        for server, address in zip(routing.servers, routing.addresses, strict=True):
            lane = lanes.get(server)
            if lane is not None and lane.address == address:
                lane.restart(stamp)
                del lanes[server]
            else:
                lane = Lane(self._loop, server, address, self._token, self._tls, stamp, self._patience_seconds)
            self._lanes[server] = lane
        for lane in lanes.values():
            lane.close()
        for push in self._unapplied:
            push.replies.clear()
            if before != self._owners:
                push.reroute(self._router, self._dense)
            if push is not self._held:
                self._send_push(push)

    def follow(self, version: int) -> None:
        """Sets the version of the directive for later requests."""
        self._version = version
        if self._stamp is not None:
            self._stamp = msgspec.structs.replace(self._stamp, version=version)
            for lane in self._lanes.values():
                lane.stamp = self._stamp

    @property
    def router(self) -> Router:
        """Lays out ids under the current routing.

        Raises:
            RoutingChangedError: not connected.
        """
        if self._router is None:
            raise RoutingChangedError("not connected to any parameter server; call connect with a directive's routing")
        return self._router

    def drop(self) -> None:
        """Drops all pulls; the next `connect` sends unapplied pushes again."""
        self._router, self._unapplied.share = None, None
        for push in self._unapplied:
            push.replies.clear()

    def forget(self) -> None:
        """Like `drop`, but also drops all pushes; running ones may or may not be applied."""
        self.drop()
        self._held = None
        self._unapplied.forget()

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Like `forget`, then closes the connections and waits for their thread."""
        self.forget()
        lanes, self._lanes, self._stamp = self._lanes, {}, None
        for lane in lanes.values():
            lane.close()
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.close(timeout_seconds)

    # Training

    def init_dense(self, values: Array) -> int:
        """Sends initial values [P] float32 to the servers; returns when all have values: a record's, another worker's
        or these.

        Returns how many steps the dense parameters have taken.

        Call it after every `connect` to a new generation. Raises like `flush`.
        """
        total = layout_size(self.layout)
        if values.shape != (total,):
            raise ValueError(f"values of shape {values.shape} for a layout of {total} elements")
        self._check_connected()
        self.release()
        request = Request(lambda stamp: InitDense(stamp=stamp, layout=self.layout))
        replies = []
        for lane, runs in zip(self._lanes.values(), self._dense.runs(total), strict=True):
            share = np.concatenate([np.empty(0, np.float32), *(values[start:end] for start, end in runs)])
            replies.append(lane.send(request, [share]))
        return max(answer.steps for answer, _ in results(replies))

    def pull(self, routed: RoutedIds, *, read_only: bool = False, dense: bool = False) -> Pulled:
        """Requests the rows of `routed`, and the dense parameters if `dense`; returns immediately."""
        self._unapplied.take_answers()
        self._check_layout(routed)
        held, self._held = self._held, None

        def make(stamp: Stamp) -> Pull:
            return Pull(stamp=stamp, read_only=read_only, dense=dense)

        replies = []
        request = Request(make)
        both = [] if held is None else held.requests(make)
        shares = [] if held is None else held.shares
        with self._sending():
            for server, (lane, asked) in enumerate(zip(self._lanes.values(), routed.requests, strict=True)):
                if held is not None and server in held.lacking:
                    reply = lane.send(both[1 if server else 0], [*shares[server], asked])
                    held.replies[server] = reply
                else:
                    reply = lane.send(request, [asked])
                replies.append(reply)
        return Pulled(routed, self._dense, self._dimensions, replies)

    def push(
        self,
        pulled: Pulled,
        row_gradients: Sequence[Array],
        dense_gradient: Sequence[Array] | None,
        samples: int,
        origin: Origin,
        *,
        closed: Sequence[tuple[str, int, int]] = (),
        hold: bool = False,
        leaves: bool = False,
        rate_scale: float = 1.0,
    ) -> int:
        """Sends the gradients of one step to every server; returns the number of bytes immediately.

        The push is kept, and sent again if necessary, until every server has applied it; until then, its arrays must
        not change.

        Args:
            row_gradients: per table group [U_g, D_g] float32, laid out like `pulled.rows()`; not copied.
            dense_gradient: [P] float32 in parts that follow each other (`FlatParameters.gradients`), not copied; None
                for none.
            samples: rows of the batch.
            origin: the rows of the gradients.
            closed, leaves, rate_scale: see messages.Push.
            hold: send it together with the next `pull`, in one round trip. Because others may wait for this push, call
                `release` if no pull follows immediately.
        """
        self._unapplied.take_answers()
        self._check_layout(pulled.routed)
        self.release()
        push = KeptPush(
            number=self._unapplied.made + 1,
            origin=origin,
            samples=samples,
            closed=list(closed),
            routed=pulled.routed,
            dense_routing=self._dense,
            gradients=row_gradients,
            dense=[np.ascontiguousarray(part, np.float32) for part in dense_gradient or ()],
            sightings=self.plan.counts_sightings,
            lacking=set(range(len(self._lanes))),
            speaks_of=[origin.split, *sorted(self._unapplied.splits_of_waiting() - {origin.split})],
            round_share=self._unapplied.share,
            leaves=leaves,
            batch_size=self._batch_size,
            rate_scale=rate_scale,
        )
        self._unapplied.add(push)
        self._held = push
        if not hold:
            self.release()
        return push.size_bytes

    def release(self) -> None:
        """Sends the push that waits for a pull, if there is one; returns immediately."""
        held, self._held = self._held, None
        if held is not None:
            self._send_push(held)

    def _send_push(self, push: KeptPush) -> None:
        requests = push.requests()
        with self._sending():
            for server, lane in enumerate(self._lanes.values()):
                if server in push.lacking:
                    push.replies[server] = lane.send(requests[min(server, 1)], push.shares[server])

    def _sending(self) -> AbstractContextManager[object]:
        """Delays the loop until all requests are sent, so that it is woken once and not for each server."""
        return nullcontext() if self._loop is None else self._loop.lock

    def flush(self) -> None:
        """Waits until every push is answered: applied, or with bsp waiting for a whole step (see `pushes_applied`).

        Raises:
            RoutingChangedError: wait for a newer directive, then connect, which sends unapplied pushes again.
            TransportError: a server refused.
        """
        self._check_connected()
        self.release()
        wait_for([reply for push in self._unapplied for reply in push.replies.values()])
        self._unapplied.take_answers()

    @property
    def pushes_applied(self) -> int:
        """The number of this client's pushes, from the first one on, that all servers have applied.

        Dropped ones are included. Does not wait; raises like `flush` when a request has failed.
        """
        self._unapplied.take_answers()
        return self._unapplied.applied

    @property
    def share(self) -> Share | None:
        """With bsp, this worker's share of the open round, for which others wait; None: none."""
        return self._unapplied.share

    def next_share(self, batch_size: int) -> Share | None:
        """With bsp, the share of the next round, at most `batch_size` rows; waits until the previous round is complete.

        None: it has none yet, because others are in a round or have all of its rows; ask again. Raises like `flush`.
        """
        self._batch_size = batch_size
        if self._unapplied.share is None:
            self.flush()
        if self._unapplied.share is None:
            self.join(batch_size)
        return self._unapplied.share

    def join(self, batch_size: int = 0) -> None:
        """Joins bsp and ssp, as any other request does; with a batch size, it also requests a share."""
        self._check_connected()
        self.release()
        self._unapplied.share = join(list(self._lanes.values()), batch_size)

    def leave(self) -> None:
        """Flushes, and leaves the rounds of all servers: call it before pausing, and when there are no more shards.

        Pushes may still wait for a whole step of bsp; a repeated call shows whether they are applied.
        Raises like `flush`; RoutingChangedError also when a server has dropped pushes of this worker.
        """
        self.flush()
        self._unapplied.share = None
        asked = []
        for server, lane in enumerate(self._lanes.values()):
            waiting = [push.origin for push in self._unapplied if server in push.lacking]
            asked.append((server, waiting, lane.send(Request(partial(_leave, waiting)))))
        answers = results([reply for _, _, reply in asked])
        for (server, waiting, _), (answer, _) in zip(asked, answers, strict=True):
            self._unapplied.note(server, {o.split: at for o, at in zip(waiting, answer.offsets, strict=True)})

    def _check_connected(self) -> None:
        assert self.router is not None

    def _check_layout(self, routed: RoutedIds) -> None:
        router = self.router
        if (routed.epoch, routed.generation) != (router.epoch, router.generation):
            raise RoutingChangedError("these ids were laid out under an older routing; route them again")


def _leave(waiting: list[Origin], stamp: Stamp) -> Leave:
    return Leave(stamp=stamp, waiting=waiting)
