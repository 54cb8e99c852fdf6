"""Pushes that not all servers have applied: the worker keeps them and sends them again to new owners of the rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from elastrec.platform.transport.wire.frames import Packed
from elastrec.trainers.embedding.lane import Request
from elastrec.trainers.embedding.replies import Reply
from elastrec.trainers.embedding.routing import RoutedIds, Router
from elastrec.trainers.parameter_server.dense.layout import DenseRouting
from elastrec.trainers.parameter_server.messages import (
    Applied,
    Origin,
    Pull,
    Push,
    PushPull,
    Share,
    SplitKey,
    Stamp,
)

Array = np.ndarray[Any, Any]


@dataclass(eq=False)
class KeptPush:
    """The gradients of one step.

    Attributes:
        number: counted from the first push of the client, which is 1.
        gradients: per table group [U_g, D_g] float32, laid out as `routed`.
        dense: parts of the dense gradient [P] float32 that follow each other.
        lacking: numbers of the servers that may not have applied it.
        replies: of servers that were sent it; `speaks_of`: the splits of which their answers speak, its own first.
        round_share, leaves, batch_size, rate_scale: see messages.Push.
        is_waiting: whether a server has answered that it waits for others, with bsp.
    """

    number: int
    origin: Origin
    samples: int
    closed: list[tuple[str, int, int]]
    routed: RoutedIds
    dense_routing: DenseRouting
    gradients: Sequence[Array]
    dense: Sequence[Array]
    sightings: bool
    lacking: set[int]
    replies: dict[int, Reply] = field(default_factory=dict)
    speaks_of: list[SplitKey] = field(default_factory=list)
    round_share: Share | None = None
    leaves: bool = False
    batch_size: int = 0
    rate_scale: float = 1.0
    is_waiting: bool = False

    def __post_init__(self) -> None:
        self.split = self.origin.split

    def requests(self, pull: Callable[[Stamp], Pull] | None = None) -> list[Request]:
        """The request to the first server of the routing, which distributes rounds, and that to all others.

        Args:
            pull: sent with the push.
        """
        return [Request(partial(self._message, pull, size)) for size in (self.batch_size, 0)]

    def _message(self, pull: Callable[[Stamp], Pull] | None, batch_size: int, stamp: Stamp) -> Push | PushPull:
        push = Push(
            stamp=stamp,
            origin=self.origin,
            samples=self.samples,
            number=self.number,
            also=self.speaks_of[1:],
            closed=self.closed,
            share=self.round_share,
            leaves=self.leaves,
            batch_size=batch_size,
            rate_scale=self.rate_scale,
        )
        return push if pull is None else PushPull(push=push, pull=pull(stamp))

    @cached_property
    def shares(self) -> list[list[Packed]]:
        """By server, the arrays of its Push; see messages."""
        routed = self.routed
        rows = routed.shares(list(map(np.ascontiguousarray, self.gradients)))
        dense = self.dense_routing.shares(self.dense)
        seen = routed.shares(routed.of_groups(routed.sightings)) if self.sightings else [()] * len(rows)
        return [
            [request, Packed.vectors(("f4", gradients), ("i4", sightings), ("f4", share))]
            for request, gradients, sightings, share in zip(routed.requests, rows, seen, dense, strict=True)
        ]

    @property
    def size_bytes(self) -> int:
        """Bytes of all servers' shares together."""
        arrays = [self.routed.counts, self.routed.ids, *self.gradients, *self.dense]
        return sum(array.nbytes for array in arrays) + self.sightings * self.routed.sightings.nbytes

    def reroute(self, router: Router, dense_routing: DenseRouting) -> None:
        """Lays the push out for another routing; all of its servers get the push, because none is known to have all of
        it."""
        self.dense_routing = dense_routing
        self.__dict__.pop("shares", None)
        self.routed, places = router.again(self.routed)
        self.gradients = [gradients[place] for gradients, place in zip(self.gradients, places, strict=True)]
        self.lacking = set(range(router.servers))


class UnappliedPushes:
    """Pushes in the order in which they were made.

    Attributes:
        share: of the round of the next push, with bsp.
    """

    def __init__(self) -> None:
        self._pushes: deque[KeptPush] = deque()
        self.made = 0
        self.share: Share | None = None

    def __iter__(self) -> Iterator[KeptPush]:
        return iter(tuple(self._pushes))

    @property
    def applied(self) -> int:
        """The number of first pushes that are applied or dropped."""
        return self._pushes[0].number - 1 if self._pushes else self.made

    def add(self, push: KeptPush) -> None:
        self._pushes.append(push)
        self.made, self.share = push.number, None

    def forget(self) -> None:
        """Drops all pushes, because the model was rolled back."""
        self._pushes.clear()

    def splits_of_waiting(self) -> set[SplitKey]:
        """Splits of pushes that servers have taken, but not applied."""
        return {push.origin.split for push in self._pushes if push.is_waiting}

    def take_answers(self) -> None:
        """Records answers that have arrived; raises the error of a failed request."""
        for push in self:
            for server in [server for server, reply in push.replies.items() if reply.is_done]:
                self.take(push, server)

    def take(self, push: KeptPush, server: int) -> None:
        """Waits for a server's answer to a push, and records it."""
        answer, _ = push.replies[server].result()
        del push.replies[server]
        if server == 0 and push.number == self.made and isinstance(answer, Applied):
            self.share = answer.share
        self.note(server, dict(zip(push.speaks_of, answer.offsets, strict=True)))
        push.is_waiting |= server in push.lacking

    def note(self, server: int, offsets: Mapping[SplitKey, int]) -> None:
        """Records the offsets up to which a server has applied splits."""
        for push in self._pushes:
            if push.origin.end <= offsets.get(push.split, -1):
                push.lacking.discard(server)
        while self._pushes and not self._pushes[0].lacking:
            self._pushes.popleft()
