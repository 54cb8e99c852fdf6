"""The distribution of a batch's ids to servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from elastrec.platform.transport.wire.frames import Packed, bytes_of, padding_of
from elastrec.trainers.embedding.kernels import route_ids
from elastrec.trainers.parameter_server.hashing import buckets_of
from elastrec.trainers.parameter_server.plan import TablePlan

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class RoutedIds:
    """The distinct ids of one batch, laid out by (group, server, table).

    Attributes:
        inverse: [N] int32, place of each id of the batch among the distinct ids of its group.
        counts: [S, T] int32, distinct ids per server and table.
        group_sizes: [G, S] int64, distinct ids per group and server.
        ids: [U] int64.
        sightings: [U] int32, how often each distinct id occurs in the batch.
        epoch, generation: of the routing that laid them out.
    """

    inverse: Array
    counts: Array
    group_sizes: Array
    ids: Array
    sightings: Array
    epoch: int
    generation: int

    @cached_property
    def sizes(self) -> list[list[int]]:
        """`group_sizes` as integers of Python."""
        sizes: list[list[int]] = self.group_sizes.tolist()
        return sizes

    @cached_property
    def requests(self) -> list[Packed]:
        """By server, `counts` and `ids` as a Pull and a Push begin with them."""
        # Joined, because copying small arrays costs less than what every frame does for each buffer.
        tables = self.counts.shape[1]
        of_counts, gap = ("i4", [tables]), padding_of(4 * tables)
        requests = []
        counts = _cuts(self.counts, [1] * len(self.counts))
        for count, ids in zip(counts, self.shares(self.of_groups(self.ids)), strict=True):
            ids_bytes = sum(map(len, ids))
            content = b"".join((count, gap, *ids, padding_of(ids_bytes)))
            requests.append(Packed([of_counts, ("i8", [ids_bytes // 8])], [content], len(content)))
        return requests

    def of_groups(self, array: Array) -> list[Array]:
        """By group, its part of an array [U] that is laid out like `ids`."""
        ends = list(accumulate(map(sum, self.sizes)))
        return [array[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def shares(self, arrays: Sequence[Array]) -> list[tuple[memoryview, ...]]:
        """By server, the bytes of its shares of arrays [U_g, ...], one for each group; not copied."""
        return list(zip(*map(_cuts, arrays, self.sizes), strict=True))


def _cuts(array: Array, sizes: Sequence[int]) -> list[memoryview]:
    """The bytes of consecutive parts of a contiguous array, by their numbers of elements along its first axis."""
    content, step_bytes, start, cuts = bytes_of(array), array.strides[0], 0, []
    for size in sizes:
        end = start + size * step_bytes
        cuts.append(content[start:end])
        start = end
    return cuts


class Router:
    """Lays out ids under one routing table.

    Args:
        owners: server of each virtual bucket.
    """

    def __init__(self, plan: TablePlan, owners: Sequence[int], servers: int, epoch: int, generation: int) -> None:
        self.plan = plan
        self.servers = servers
        self.epoch, self.generation = epoch, generation
        self._owners = np.asarray(owners, np.int32)
        self._moduli = np.array([table.hash_size for table in plan.tables], np.int64)
        self._salts = np.array([table.salt for table in plan.tables], np.uint64)
        self._group_of_table = np.empty(len(plan.tables), np.int64)
        self._first_tables = [group.first_table for group in plan.groups]
        for group in plan.groups:
            self._group_of_table[group.first_table : group.end_table] = group.index

    def route(self, values: Array, starts: Array, ends: Array, tables: Array) -> RoutedIds:
        """Lays out ids [N] int64; starts, ends and tables [F] int64 describe the features, ordered by table."""
        total = len(values)
        inverse = np.empty(total, np.int32)
        ids, sightings = np.empty(total, np.int64), np.empty(total, np.int32)
        counts = np.zeros((self.servers, len(self.plan.tables)), np.int32)
        unique = route_ids(
            values, starts, ends, tables, self._moduli, self._salts, self._group_of_table, self._owners, self.servers,
            inverse, ids, sightings, counts,
        )  # fmt: skip
        return RoutedIds(
            inverse, counts, self._group_sizes(counts), ids[:unique], sightings[:unique], self.epoch, self.generation
        )

    def recounted(self, routed: RoutedIds, repeats: Array, starts: Array, ends: Array, tables: Array) -> RoutedIds:
        """The same ids with `repeats[n]` sightings of id n of `route`'s values: int64 [N]."""
        group_starts = np.concatenate(([0], np.cumsum(routed.group_sizes.sum(axis=1))))
        sightings = np.zeros(len(routed.ids), np.int64)
        for start, end, table in zip(starts.tolist(), ends.tolist(), tables.tolist(), strict=True):
            places = routed.inverse[start:end] + group_starts[self._group_of_table[table]]
            np.add.at(sightings, places, repeats[start:end])
        return replace(routed, sightings=np.minimum(sightings, np.iinfo(np.int32).max).astype(np.int32))

    def again(self, routed: RoutedIds) -> tuple[RoutedIds, list[Array]]:
        """The ids of another routing under this one, without `inverse`, and where they lay.

        Returns:
            Beside the ids, per group [U_g] int64: the places that its ids had among the group's.
        """
        counts = np.zeros((self.servers, len(self.plan.tables)), np.int32)
        orders, places, at = [], [], 0
        for group in self.plan.groups:
            tables = np.arange(group.first_table, group.end_table)
            before = routed.counts[:, group.first_table : group.end_table]
            table_of = np.repeat(np.tile(tables, len(before)), before.reshape(-1))
            ids = routed.ids[at : at + len(table_of)]
            owner_of = np.empty(len(ids), np.int64)
            for table in tables.tolist():
                mine = table_of == table
                name = self.plan.tables[table].name
                owner_of[mine] = self._owners[buckets_of(ids[mine], name, self.plan.virtual_buckets)]
            place = np.lexsort((table_of, owner_of))
            np.add.at(counts, (owner_of, table_of), 1)
            orders.append(at + place)
            places.append(place)
            at += len(ids)
        order = np.concatenate(orders)
        again = RoutedIds(
            np.empty(0, np.int32), counts, self._group_sizes(counts), routed.ids[order], routed.sightings[order],
            self.epoch, self.generation,
        )  # fmt: skip
        return again, places

    def _group_sizes(self, counts: Array) -> Array:
        return np.add.reduceat(counts, self._first_tables, axis=1, dtype=np.int64).T
