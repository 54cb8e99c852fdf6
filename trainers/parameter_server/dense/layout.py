"""The flat vector of the dense parameters, and the runs of it that belong to one server. Pure.

The P dense parameters of the network form one float32 vector in the order of their layout. It is cut into B dense
buckets of equal size: bucket k holds the elements from k P / B to (k + 1) P / B. Neighbouring buckets of one server
make a *run*, so a server's share is a few contiguous ranges of the vector.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from elastrec.platform.specs.errors import TransportError
from elastrec.platform.transport.wire.frames import bytes_of
from elastrec.trainers.parameter_server.messages import Parameter

Array = np.ndarray[Any, Any]
Run = tuple[int, int]
"""First element of the flat vector, and one past the last."""


def layout_size(layout: Sequence[Parameter]) -> int:
    return sum(math.prod(parameter.shape) for parameter in layout)


def run_size(runs: Sequence[Run]) -> int:
    return sum(end - start for start, end in runs)


def bucket_edges(buckets: int, elements: int) -> Array:
    """[B + 1] int64: bucket k holds the elements from edge k to edge k + 1."""
    return np.arange(buckets + 1, dtype=np.int64) * elements // max(buckets, 1)


def dense_runs(owned: Array, elements: int) -> list[Run]:
    """The elements of some buckets, in order; adjacent runs are merged.

    Args:
        owned: [B] bool.
        elements: of the flat vector.
    """
    edges = bucket_edges(len(owned), elements)
    numbers = np.flatnonzero(owned & (np.diff(edges) > 0))
    if not len(numbers):
        return []
    starts, ends = edges[numbers], edges[numbers + 1]
    gaps = np.flatnonzero(starts[1:] != ends[:-1])
    firsts, lasts = [0, *(gaps + 1).tolist()], [*gaps.tolist(), len(numbers) - 1]
    return list(zip(starts[firsts].tolist(), ends[lasts].tolist(), strict=True))


@dataclass(frozen=True)
class Piece:
    """Neighbouring elements of one parameter in a server's share.

    Attributes:
        start: first element, counted in the flattened parameter.
        place: first element, counted in the share, whose runs follow each other without gaps.
    """

    parameter: Parameter
    start: int
    place: int
    length: int


def pieces_of(layout: Sequence[Parameter], runs: Sequence[Run]) -> Iterator[Piece]:
    """The parameters of a share, in the order of the flat vector."""
    number, place, begin = 0, 0, 0
    for parameter in layout:
        end = begin + math.prod(parameter.shape)
        while number < len(runs) and runs[number][0] < end:
            low, high = max(begin, runs[number][0]), min(end, runs[number][1])
            if low < high:
                yield Piece(parameter, low - begin, place, high - low)
                place += high - low
            if runs[number][1] > end:
                break
            number += 1
        begin = end


class DenseRouting:
    """The elements of the flat vector by server, under one routing table.

    Args:
        owners: server of each dense bucket.
    """

    def __init__(self, owners: Sequence[int], servers: int) -> None:
        self._owners = np.asarray(owners, np.int64)
        self._servers = servers
        # Of the last requested layout; a job has one.
        self._elements = -1
        self._runs: list[list[Run]] = []
        self._sizes: list[int] = []
        self._places: list[tuple[int, slice]] = []
        self._lengths: list[int] = []
        self._cuts: list[list[tuple[int, slice]]] = [[] for _ in range(servers)]

    def runs(self, elements: int) -> list[list[Run]]:
        """By server, the runs of a vector with a number of elements."""
        if elements != self._elements:
            self._runs = [dense_runs(self._owners == server, elements) for server in range(self._servers)]
            self._sizes = [run_size(runs) for runs in self._runs]
            self._places = _places_of(self._runs)
            self._elements = elements
        return self._runs

    def joined(self, shares: Sequence[Array], out: Array | None = None) -> Array:
        """The flat vector that the shares of all servers make, empty if they are.

        Args:
            out: [P] float32 to be filled and returned, unless the shares are empty. None: a new vector, or the share of
                a single server itself.

        Raises:
            TransportError: a share is not as long as the runs of its server.
        """
        elements = sum(len(share) for share in shares)
        if not elements or (out is None and len(shares) == 1):
            return shares[0]
        vector = np.empty(elements, np.float32) if out is None else out
        self.runs(len(vector))
        for server, (share, size) in enumerate(zip(shares, self._sizes, strict=True)):
            if len(share) != size:
                raise TransportError(f"server {server} sent {len(share)} dense parameters; {size} are its own")
        return np.concatenate([shares[server][place] for server, place in self._places], out=vector)

    def shares(self, parts: Sequence[Array]) -> list[list[memoryview]]:
        """By server, the bytes of its share of the vector that contiguous parts [E_i] float32 make, not copied."""
        lengths = [len(part) for part in parts]
        if lengths != self._lengths:
            self._cuts = [_cuts_of(lengths, runs) for runs in self.runs(sum(lengths))]
            self._lengths = lengths
        views = [bytes_of(part) for part in parts]
        return [[views[number][cut] for number, cut in cuts] for cuts in self._cuts]


def _places_of(runs: Sequence[Sequence[Run]]) -> list[tuple[int, slice]]:
    """The runs of all servers in the order of the flat vector: (server, range in its share)."""
    found = []
    for server, mine in enumerate(runs):
        place = 0
        for start, end in mine:
            found.append((start, server, slice(place, place + end - start)))
            place += end - start
    return [(server, place) for _, server, place in sorted(found, key=lambda each: each[0])]


def _cuts_of(lengths: Sequence[int], runs: Sequence[Run]) -> list[tuple[int, slice]]:
    """A server's runs in a vector of parts of these lengths, float32: (number of a part, its byte range)."""
    cuts, number, begin = [], 0, 0
    for start, end in runs:
        while start < end:
            while begin + lengths[number] <= start:
                begin, number = begin + lengths[number], number + 1
            stop = min(end, begin + lengths[number])
            cuts.append((number, slice(4 * (start - begin), 4 * (stop - begin))))
            start = stop
    return cuts
