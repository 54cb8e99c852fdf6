"""All rows of one table group on one server, in buckets. Locks guard stripes of buckets. Thread-safe."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from elastrec.platform.specs.errors import IncompatibleError
from elastrec.platform.transport.messages.job import TableUsage
from elastrec.trainers.parameter_server.hashing import seed_hash
from elastrec.trainers.parameter_server.plan import TableGroup, TablePlan
from elastrec.trainers.parameter_server.prefetch import AHEAD
from elastrec.trainers.parameter_server.storage import eviction
from elastrec.trainers.parameter_server.storage.bucket import Bucket
from elastrec.trainers.parameter_server.storage.cuts import Cuts
from elastrec.trainers.parameter_server.storage.handle import Guarded, make_handle
from elastrec.trainers.parameter_server.storage.indexed_pools import IndexedPoolMemory
from elastrec.trainers.parameter_server.storage.kernels import access, serving
from elastrec.trainers.parameter_server.storage.kernels.arrays import COUNT, FROZEN, Request, Settings, read_only_view
from elastrec.trainers.parameter_server.storage.kernels.index import LOOKUP_BATCH
from elastrec.trainers.parameter_server.storage.kernels.locks import Locks, unlock
from elastrec.trainers.parameter_server.storage.kernels.serving import (
    ALL,
    DROPS,
    HELD,
    order_ids,
    pull_request,
    push_request,
)
from elastrec.trainers.parameter_server.storage.layout import CANDIDATE_WORDS, RowLayout
from elastrec.trainers.parameter_server.storage.memory import (
    PAGE_BYTES,
    PoolMemory,
    Region,
    RegionSize,
    ServerMemoryError,
    UsedRegions,
    physical_memory_bytes,
)
from elastrec.trainers.parameter_server.storage.rules import RowRules

Array = np.ndarray[Any, Any]

MOST_STRIPES = 32
_SLAB_BYTES, _CANDIDATE_SLAB_BYTES = 4 * PAGE_BYTES, PAGE_BYTES
_SMALLEST_RESERVATION_ROWS = 2**20
_STEP_CELLS = 2048
"""Cells that are inserted or removed while a lock is held once: about half a millisecond."""
_FOREIGN = "the request names ids whose buckets belong to another server"
_INDEX_BYTES = 64 / 12 / 0.64
"""Bytes of index per row or candidate right after a run has grown: 64-byte lines of 12 slots, 64 % of them used."""


@dataclass
class Lookup:
    """The ids of a request and the places of their rows. A push of the same ids can use the lookup of a pull.

    Attributes:
        foreign: number of ids in buckets of other servers.
        drops: number of buckets that the store had dropped when the request was ordered.
        places: [U] int64, the rows' places; negative: no row.
        by_stripe: [S, 2] int64: number of ids without a row, and the stripe's moves at the lookup (-1: none was
            made).
    """

    request: Request
    foreign: int
    drops: int
    places: Array
    by_stripe: Array


class RowStore:
    """The rows and candidates of the tables of one group.

    Args:
        owned: [V] bool, the buckets that this server may hold.
        capacity_rows: most rows; default: as many as fit into the machine's memory.
        stripes: number of stripes; a power of two.
        used: memory of earlier stores, which this one uses again; `trim` returns the rest.

    Attributes:
        marks: [V, 4] int64, versions of the buckets (`arrays`).
        stripe_of: [V] int64, the stripe of each bucket, whose lock guards it.
        moves: [S] int64, number of changes of places in a stripe. A change invalidates earlier lookups.
        entries: [V, T, 2] int64, numbers of rows and of candidates by bucket and table.
        load: [V] int64, number of ids in requests so far, by bucket.
        handle: the addresses of all arrays, for kernels; see `handle`.
    """

    def __init__(
        self,
        plan: TablePlan,
        group: TableGroup,
        owned: Array,
        capacity_rows: int | None = None,
        stripes: int = 1,
        used: UsedRegions | None = None,
    ) -> None:
        self.plan, self.group = plan, group
        self.rules = RowRules(group.segments)
        self.evicts = group.evict_after_seconds > 0
        self.layout = RowLayout(group.dimension, self.rules.state_width, self.evicts)
        self.row_bytes = 4 * self.layout.width
        self.owned: Array = np.array(owned, np.bool_)
        self.capacity_rows = capacity_rows or max(_SMALLEST_RESERVATION_ROWS, physical_memory_bytes() // self.row_bytes)
        buckets, tables = plan.virtual_buckets, group.end_table - group.first_table
        self.rows_memory = IndexedPoolMemory(self.layout.width, buckets, stripes, self.capacity_rows, _SLAB_BYTES, used)
        candidates = 4 * self.capacity_rows if group.admit_after > 1 else 0
        self.candidates_memory = IndexedPoolMemory(
            CANDIDATE_WORDS, buckets, stripes, candidates, _CANDIDATE_SLAB_BYTES, used
        )
        self.tombstones_memory = PoolMemory(4, buckets, stripes, 16 * self.capacity_rows, PAGE_BYTES // 4, huge=False)
        self.marks = np.zeros((buckets, 4), np.int64)
        self.marks[:, FROZEN] = -1
        # Buckets are assigned to servers in turn, so stripes depend on other bits of the number than the lowest.
        mixed = (np.arange(buckets, dtype=np.uint64) * np.uint64(0x9E3779B1)) & np.uint64(0xFFFFFFFF)
        self.stripe_of: Array = (mixed * np.uint64(stripes) >> np.uint64(32)).astype(np.int64)
        self.locks = Locks(stripes)
        self.moves = np.zeros(stripes, np.int64)
        self._counters = np.array([0, self.capacity_rows], np.int64)
        self.entries = np.zeros((buckets, tables, 2), np.int64)
        self.load = np.zeros(buckets, np.int64)
        tables_of_group = plan.tables[group.first_table : group.end_table]
        self.salts = np.array([table.salt for table in tables_of_group], np.uint64)
        self.settings = Settings(
            salts=self.salts,
            ranges=np.array([table.column_ranges for table in tables_of_group], np.float64),
            segments=self.rules.segments,
            numbers=self.rules.numbers,
            initial_state=self.rules.initial_state,
            seed_hash=np.uint64(seed_hash(plan.seed)),
            admit_after=group.admit_after,
            seen_word=self.layout.seen_word,
            state_word=self.layout.state_word,
            value_word=self.layout.value_word,
            states=self.layout.states,
            dimension=group.dimension,
        )
        self._no_sightings = np.empty(0, np.int32)
        guarded = Guarded(
            self.marks,
            self.owned,
            self.stripe_of,
            self.locks.words,
            self.moves,
            self.entries,
            self._counters,
            self.load,
        )
        self.cuts = Cuts(
            (self.rows_memory, self.candidates_memory), self.tombstones_memory, self.marks, self.stripe_of, self.locks,
            self.entries,
        )  # fmt: skip
        self.handle = make_handle(
            self.rows_memory.indexed,
            self.candidates_memory.indexed,
            self.tombstones_memory.pool,
            self.settings,
            guarded,
        )

    @property
    def rows(self) -> int:
        return int(self.entries[:, :, 0].sum())

    def bucket(self, number: int) -> Bucket:
        """A handle to one virtual bucket."""
        return Bucket(self, number)

    def buckets_in_use(self) -> list[int]:
        """Owned buckets with a row or a candidate."""
        pools = self.rows_memory.indexed.pool, self.candidates_memory.indexed.pool
        return np.flatnonzero(self.owned & (pools[0].buckets[:, COUNT] + pools[1].buckets[:, COUNT] > 0)).tolist()

    @contextmanager
    def locked(self, bucket: int) -> Iterator[int]:
        """Holds the lock of a bucket's stripe; yields the stripe."""
        stripe = int(self.stripe_of[bucket])
        with self.locks.held(stripe):
            yield stripe

    def _new_lookup(self, size: int) -> Lookup:
        stripes = self.locks.count
        request = Request(
            np.empty(size, np.int64), np.empty(size, np.uint64), np.empty(size, np.int32), np.empty(size, np.int32),
            np.empty(size, np.int32), np.zeros(stripes + 1, np.int64),
        )  # fmt: skip
        return self.lookup_of(request)

    def lookup_of(self, request: Request) -> Lookup:
        """A lookup of a request whose ids are about to be ordered; no row is looked up yet."""
        by_stripe = np.full((self.locks.count, 2), -1, np.int64)
        return Lookup(request, 0, int(self._counters[DROPS]), np.empty(len(request.ids), np.int64), by_stripe)

    def look_up(self, counts: Array, ids: Array) -> Lookup:
        """Orders ids [U] int64, `counts` [T] int32 of them per table, by stripe. Does not search their rows."""
        lookup = self._new_lookup(len(ids))
        lookup.foreign = order_ids(
            self.handle, read_only_view(counts), read_only_view(ids), lookup.request,
            np.zeros(len(self.load), np.int64), np.empty(self.locks.count, np.int64),
        )  # fmt: skip
        return lookup

    def pull(self, counts: Array, ids: Array, *, read_only: bool, out: Array | None = None) -> tuple[Array, Lookup]:
        """Values [U, D] float32 of ids [U] int64, `counts` [T] int32 of them per table, and a lookup for `push`.

        Args:
            read_only: absent rows are zero; else they have their initial values (also zero with admission).
            out: [U, D] float32, filled and returned; default: a new array.

        Raises:
            IncompatibleError: an id's bucket belongs to another server.
        """
        lookup = self._new_lookup(len(ids))
        values = np.empty((len(ids), self.group.dimension), np.float32) if out is None else out
        lookup.foreign = pull_request(
            self.handle, read_only_view(counts), read_only_view(ids), lookup.request,
            read_only or self.group.admit_after > 1, lookup.places, lookup.by_stripe, values,
            np.zeros(len(self.load), np.int64), np.empty((2, LOOKUP_BATCH), np.int64),
        )  # fmt: skip
        if lookup.foreign:
            raise IncompatibleError(_FOREIGN)
        return values, lookup

    def push(
        self,
        counts: Array,
        ids: Array,
        sightings: Array,
        gradients: Array,
        now_seconds: float,
        lookup: Lookup | None = None,
        rate_scale: float = 1.0,
    ) -> None:
        """Applies gradients [U, D] of distinct ids, and creates their rows. With admission, counts sightings first.

        Args:
            counts, ids: see `pull`.
            sightings: [U] int32, how often each id was seen; only read with admission.
            now_seconds: time of this sighting.
            lookup: the result of a pull of the same counts and ids, which saves another search.
            rate_scale: a factor of the rules' learning rates.

        Raises:
            IncompatibleError: an id's bucket belongs to another server; nothing was changed.
            ServerMemoryError: no room for more rows.
        """
        lookup = self.look_up(counts, ids) if lookup is None else lookup
        if lookup.foreign:
            raise IncompatibleError(_FOREIGN)
        state, report = np.array([ALL, -1, 0, 0], np.int64), np.zeros(4, np.int64)
        sightings = read_only_view(sightings if self.group.admit_after > 1 else self._no_sightings)
        gradients = read_only_view(gradients)
        offsets, scratch = np.empty(AHEAD, np.int64), np.empty((2, LOOKUP_BATCH), np.int64)
        while True:
            stopped = push_request(
                self.handle, lookup.request, lookup.drops, lookup.places, lookup.by_stripe, sightings, int(now_seconds),
                np.float32(rate_scale), gradients, offsets, scratch, state, report,
            )  # fmt: skip
            if stopped == serving.DONE:
                return
            stripe = int(state[HELD])
            try:
                if stopped == serving.DROPPED:
                    raise IncompatibleError(_FOREIGN)
                if stopped == serving.APPLY:
                    self.rows_memory.refill(stripe)
                else:
                    self.provide(stripe, report)
            except BaseException:
                unlock(self.locks.words, stripe)
                raise

    def provide(self, stripe: int, report: Array) -> None:
        """Provides the memory for which a kernel stopped. The stripe's lock is held.

        Raises:
            ServerMemoryError: no memory is left.
        """
        code, bucket = int(report[0]), int(report[1])
        if code == access.NEED_SLABS:
            self.rows_memory.refill(stripe)
            self.candidates_memory.refill(stripe)
            if not self.tombstones_memory.pool.spares[stripe, 0]:
                self.tombstones_memory.refill(stripe)
        elif code == access.NEED_LINES:
            self.rows_memory.grow_if_full(bucket, self.salts)
            self.candidates_memory.grow_if_full(bucket, self.salts)
        elif code == access.NEED_RELEASE:
            self.return_slabs(stripe)
        else:
            raise ServerMemoryError(
                f"no room for another row: {self.rows} rows of {self.row_bytes} bytes are held; give the job more "
                "parameter servers, or limit its tables (hash_size, admit_after, evict_after)"
            )

    def return_slabs(self, stripe: int) -> None:
        """Returns the slabs that kernels have released in a stripe. Its lock is held."""
        for memory in (self.rows_memory, self.candidates_memory):
            memory.give_back(memory.take_released(stripe))

    def evict(self, now_seconds: float) -> int:
        """Removes rows and candidates not seen for the group's `evict_after`; returns their number."""
        return sum(self.eviction_steps(now_seconds, lambda bucket: True))

    def eviction_steps(self, now_seconds: float, may_change: Callable[[int], bool]) -> Iterator[int]:
        """As `evict`, in small steps with one lock each, of buckets for which `may_change` is true before each step;
        yields the number that each step has removed."""
        return eviction.steps(self, now_seconds, may_change)

    @property
    def regions(self) -> list[Region]:
        """The memory that another store can use when this one does not exist any more."""
        return self.rows_memory.regions + self.candidates_memory.regions

    @property
    def region_sizes(self) -> list[RegionSize]:
        """The sizes of `regions`, and the bytes that a store with as many rows will use of them."""
        return self.rows_memory.region_sizes + self.candidates_memory.region_sizes

    def trim(self) -> None:
        """Returns the pages of earlier stores that this one does not use yet."""
        self.rows_memory.trim()
        self.candidates_memory.trim()

    @property
    def memory_bytes(self) -> int:
        """Size of slabs, index, shadows, logs and tombstones."""
        return self.rows_memory.bytes + self.candidates_memory.bytes + self.tombstones_memory.bytes

    def usage(self, buckets: Array | None = None) -> list[TableUsage]:
        """Rows and bytes by table. The bytes of candidates and index are divided among tables by their entries.

        These are the bytes that grow with the number of rows, from which memory is forecast. Unused parts of slabs and
        index runs are only in `memory_bytes`.

        Args:
            buckets: [V] bool, the buckets to count; default: all.
        """
        counts = (self.entries if buckets is None else self.entries[buckets]).sum(axis=0)
        entries = counts.sum(axis=1)
        total = int(entries.sum())
        index = min(self.rows_memory.index.bytes + self.candidates_memory.index.bytes, round(_INDEX_BYTES * total))
        shared = index + 4 * CANDIDATE_WORDS * int(counts[:, 1].sum())
        total = max(1, total)
        shares = [shared * int(count) // total for count in entries]
        if shares:
            shares[-1] += shared - sum(shares)
        return [
            TableUsage(
                table=self.plan.tables[self.group.first_table + index].name,
                rows=int(rows),
                bytes=int(rows) * self.row_bytes + shares[index],
            )
            for index, rows in enumerate(counts[:, 0])
        ]

    def insert(self, lookup: Lookup, cells: Array, *, kind: int) -> None:
        """Inserts or replaces cells [U, W] uint32 of a lookup's ids: rows (kind 0) or candidates (1).

        Works in small steps with one lock each, as `remove` does.

        Raises:
            ServerMemoryError: no room for more rows.
        """
        self._change_cells(access.insert_cells, lookup, cells, kind)

    def remove(self, lookup: Lookup) -> None:
        """Removes the rows and candidates of a lookup's ids, in small steps."""
        nothing = np.empty((0, 1), np.uint32)
        for kind in (0, 1):
            self._change_cells(access.remove_cells, lookup, nothing, kind)

    def _change_cells(self, kernel: Callable[..., None], lookup: Lookup, cells: Array, kind: int) -> None:
        indexed_pools: Sequence[Any] = self.rows_memory.indexed, self.candidates_memory.indexed
        cells, starts = read_only_view(cells), lookup.request.starts
        for stripe in np.flatnonzero(starts[1:] > starts[:-1]).tolist():
            report = np.array([access.PAUSED, 0, 0, 0], np.int64)
            while report[0] != access.DONE:
                with self.locks.held(stripe):
                    self.moves[stripe] += 1
                    kernel(
                        indexed_pools[kind], indexed_pools[1 - kind], self.tombstones_memory.pool, self.settings,
                        self.marks, lookup.request, stripe, cells, kind, self.entries, self.locks.words,
                        _STEP_CELLS, report,
                    )  # fmt: skip
                    self.return_slabs(stripe)
                    if report[0] not in (access.DONE, access.PAUSED):
                        self.provide(stripe, report)
                    elif report[0] == access.DONE and kind == 0 and self.rows > self.capacity_rows:
                        self.provide(stripe, np.array([access.FULL, 0, 0, 0]))

    def forget_bucket(self, bucket: int) -> None:
        """See `Bucket.drop`."""
        with self.locked(bucket) as stripe:
            self.owned[bucket] = False
            self._counters[DROPS] += 1
            self.moves[stripe] += 1
            memories = self.rows_memory, self.candidates_memory
            slabs = [memory.detach(bucket)[0] for memory in memories]
            self.cuts.forget_bucket(bucket)
            self.entries[bucket] = 0
        # No other thread can reach these slabs any more.
        for memory, mine in zip(memories, slabs, strict=True):
            memory.rows.free(mine.tolist())
