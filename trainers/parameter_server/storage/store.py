"""All rows of one table group on one server, in buckets behind locks by stripe. Thread-safe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from elastrec.platform.specs.errors import ElastrecError, IncompatibleError
from elastrec.platform.transport.job_messages import TableUsage
from elastrec.trainers.parameter_server.hashing import seed_hash
from elastrec.trainers.parameter_server.plan import TableGroup, TablePlan
from elastrec.trainers.parameter_server.prefetch import AHEAD
from elastrec.trainers.parameter_server.storage import access, serving
from elastrec.trainers.parameter_server.storage.arrays import (
    CELL_VERSION,
    COPIED,
    COUNT,
    FROZEN,
    LOG_FROM,
    LOGGING,
    REST,
    VERSION,
    Request,
    Settings,
)
from elastrec.trainers.parameter_server.storage.bucket import Bucket
from elastrec.trainers.parameter_server.storage.handle import Guarded, make_handle
from elastrec.trainers.parameter_server.storage.index import RING
from elastrec.trainers.parameter_server.storage.layout import CANDIDATE_WORDS, RowLayout
from elastrec.trainers.parameter_server.storage.locks import Locks, is_wanted, unlock
from elastrec.trainers.parameter_server.storage.memory import (
    PAGE_BYTES,
    PoolMemory,
    ServerMemoryError,
    physical_memory_bytes,
)
from elastrec.trainers.parameter_server.storage.pools import cut_first
from elastrec.trainers.parameter_server.storage.rules import RowRules
from elastrec.trainers.parameter_server.storage.serving import DROPS, HELD, lay_out, pull_request, push_request
from elastrec.trainers.parameter_server.storage.shelves import ShelfMemory, detach

Array = np.ndarray[Any, Any]

MOST_STRIPES = 32
_SLAB_BYTES, _CANDIDATE_SLAB_BYTES = 4 * PAGE_BYTES, PAGE_BYTES
_SMALLEST_RESERVATION_ROWS = 2**20
_FOREIGN = "the request names ids whose buckets belong to another server"
_INDEX_BYTES = 64 / 12 / 0.64
"""Per entry right after a run has grown."""
NEVER = np.iinfo(np.int64).max
_CUTS = 4
"""Saves whose versions are remembered: the last one may not have become a record."""
_EVICTION_STEP_ROWS = 16_384
"""Looked at under one lock unless somebody waits for it: half a millisecond, some more when all of them go."""
_NAPS, _NAP_SECONDS = 20, 5e-5


@dataclass
class Lookup:
    """The ids of a request and where their rows are; a pull's serves the push of the same ids.

    Attributes:
        foreign: ids in buckets of other servers.
        drops: buckets that the store had dropped by then.
        places: [U] int64, the rows' places, negative where there is none.
        found: [S, 2] int64, ids without a row, and the stripe's moves when it was looked up (-1: it was not).
    """

    request: Request
    foreign: int
    drops: int
    places: Array
    found: Array


def _read_only(array: Array) -> Array:
    """A view; numba compiles a kernel anew for what may be written."""
    view = array.view()
    view.flags.writeable = False
    return view


class RowStore:
    """Growable rows of the tables of one group.

    Args:
        owned: [V] bool, the buckets that this server may hold.
        capacity_rows: most rows; default: what the machine's memory could hold at all.
        stripes: locks; a power of two.
    """

    def __init__(
        self,
        plan: TablePlan,
        group: TableGroup,
        owned: Array,
        capacity_rows: int | None = None,
        stripes: int = 1,
    ) -> None:
        self.plan, self.group = plan, group
        self.rules = RowRules(group.segments)
        self.evicts = group.evict_after_seconds > 0
        self.layout = RowLayout(group.dimension, self.rules.state_width, self.evicts)
        self.row_bytes = 4 * self.layout.width
        self.owned: Array = np.array(owned, np.bool_)
        self.capacity_rows = capacity_rows or max(_SMALLEST_RESERVATION_ROWS, physical_memory_bytes() // self.row_bytes)
        buckets, tables = plan.virtual_buckets, group.end_table - group.first_table
        self.rows_memory = ShelfMemory(self.layout.width, buckets, stripes, self.capacity_rows, _SLAB_BYTES)
        candidates = 4 * self.capacity_rows if group.admit_after > 1 else 0
        self.waiting_memory = ShelfMemory(CANDIDATE_WORDS, buckets, stripes, candidates, _CANDIDATE_SLAB_BYTES)
        self.tombs_memory = PoolMemory(4, buckets, stripes, 16 * self.capacity_rows, PAGE_BYTES // 4, huge=False)
        self.marks = np.zeros((buckets, 4), np.int64)
        self.marks[:, FROZEN] = -1
        # Owners are dealt out in turn: neighbouring buckets are spread by other bits than the number's lowest.
        mixed = (np.arange(buckets, dtype=np.uint64) * np.uint64(0x9E3779B1)) & np.uint64(0xFFFFFFFF)
        self.stripe_of: Array = (mixed * np.uint64(stripes) >> np.uint64(32)).astype(np.int64)
        # What a copy of frozen buckets says beside their cells: since when changes were logged then, rows by table.
        self.logs = False
        self.logged_from = np.full(buckets, NEVER, np.int64)
        self.frozen_rows = np.zeros((stripes, tables), np.int64)
        self._saved: dict[str, Array] = {}
        self._locks = Locks(stripes)
        self.moves = np.zeros(stripes, np.int64)
        self._counters = np.array([0, self.capacity_rows], np.int64)
        self._usage = np.zeros((stripes, tables, 2), np.int64)
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
            self.marks, self.owned, self.stripe_of, self._locks.words, self.moves, self._usage, self._counters
        )
        self._handle = make_handle(
            self.rows_memory.shelf, self.waiting_memory.shelf, self.tombs_memory.pool, self.settings, guarded
        )

    @property
    def rows(self) -> int:
        return int(self._usage[:, :, 0].sum())

    def bucket(self, number: int) -> Bucket:
        """A handle to one virtual bucket."""
        return Bucket(self, number)

    def buckets_in_use(self) -> list[int]:
        """Owned buckets that hold a row or a candidate."""
        pools = self.rows_memory.shelf.pool, self.waiting_memory.shelf.pool
        return np.flatnonzero(self.owned & (pools[0].buckets[:, COUNT] + pools[1].buckets[:, COUNT] > 0)).tolist()

    @contextmanager
    def locked(self, bucket: int) -> Iterator[int]:
        """The stripe of a bucket, with its lock."""
        stripe = int(self.stripe_of[bucket])
        with self._locks.held(stripe):
            yield stripe

    def _visit(self, lookup: Lookup, work: Callable[[int], None]) -> None:
        """Does the work of each stripe of a request with its lock."""
        starts = lookup.request.starts
        for stripe in np.flatnonzero(starts[1:] > starts[:-1]).tolist():
            with self._locks.held(stripe):
                work(stripe)

    def _new_lookup(self, ids: Array) -> Lookup:
        size, stripes = len(ids), self._locks.count
        # A copy: what frames lend is read-only, for which numba would compile all kernels once more.
        request = Request(
            ids.copy(), np.empty(size, np.uint64), np.empty(size, np.int32), np.empty(size, np.int32),
            np.empty(size, np.int32), np.zeros(stripes + 1, np.int64),
        )  # fmt: skip
        return self.lookup_of(request)

    def lookup_of(self, request: Request) -> Lookup:
        """A lookup of a request that is being laid out; no row of it is found yet."""
        found = np.full((self._locks.count, 2), -1, np.int64)
        return Lookup(request, 0, int(self._counters[DROPS]), np.empty(len(request.ids), np.int64), found)

    def look_up(self, counts: Array, ids: Array) -> Lookup:
        """Lays out ids [U] int64, `counts` [T] int32 of them per table, without finding their rows yet."""
        lookup = self._new_lookup(ids)
        lookup.foreign = lay_out(self._handle, counts.copy(), lookup.request, np.empty(self._locks.count, np.int64))
        return lookup

    def pull(self, counts: Array, ids: Array, *, read_only: bool, out: Array | None = None) -> tuple[Array, Lookup]:
        """Values [U, D] float32 of ids [U] int64, `counts` [T] int32 of them per table, and what `push` may know.

        Args:
            out: [U, D], to be filled.

        Raises:
            IncompatibleError: an id's bucket belongs to another server.
        """
        lookup = self._new_lookup(ids)
        values = np.empty((len(ids), self.group.dimension), np.float32) if out is None else out
        lookup.foreign = pull_request(
            self._handle, counts.copy(), lookup.request, read_only or self.group.admit_after > 1, lookup.places,
            lookup.found, values, np.empty((2, RING), np.int64),
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
        """Applies gradients [U, D] of distinct ids, making rows that are due.

        Args:
            lookup: of a pull of the same counts and ids: spares looking them up again.
            rate_scale: a factor of the rules' learning rates.

        Raises:
            IncompatibleError: an id's bucket belongs to another server; nothing was changed.
            ServerMemoryError: no room for more rows.
        """
        lookup = self.look_up(counts, ids) if lookup is None else lookup
        if lookup.foreign:
            raise IncompatibleError(_FOREIGN)
        starts = lookup.request.starts
        left = sum(1 << stripe for stripe in range(self._locks.count) if starts[stripe] != starts[stripe + 1])
        state, report = np.array([left, -1, 0, 0], np.int64), np.zeros(4, np.int64)
        sightings = _read_only(sightings if self.group.admit_after > 1 else self._no_sightings)
        gradients = _read_only(gradients)
        offsets, scratch = np.empty(AHEAD, np.int64), np.empty((2, RING), np.int64)
        while True:
            stopped = push_request(
                self._handle, lookup.request, lookup.drops, lookup.places, lookup.found, sightings, int(now_seconds),
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
                unlock(self._locks.words, stripe)
                raise

    def provide(self, stripe: int, report: Array) -> None:
        """What a kernel stopped for. The stripe's lock is held.

        Raises:
            ServerMemoryError: there is no more.
        """
        code, bucket = int(report[0]), int(report[1])
        if code == access.NEED_SLABS:
            self.rows_memory.refill(stripe)
            self.waiting_memory.refill(stripe)
            if not self.tombs_memory.pool.spares[stripe, 0]:
                self.tombs_memory.refill(stripe)
        elif code == access.NEED_LINES:
            self.rows_memory.grow_if_full(bucket, self.salts)
            self.waiting_memory.grow_if_full(bucket, self.salts)
        elif code == access.NEED_RELEASE:
            self.take_back(stripe)
        else:
            raise ServerMemoryError(
                f"no room for another row: {self.rows} rows of {self.row_bytes} bytes are held; give the job more "
                "parameter servers, or limit its tables (hash_size, admit_after, evict_after)"
            )

    def take_back(self, stripe: int) -> None:
        """Returns the slabs that kernels have released in a stripe. Its lock is held."""
        for memory in (self.rows_memory, self.waiting_memory):
            memory.give_back(memory.take_released(stripe))

    def evict(self, now_seconds: float) -> int:
        """Drops rows and candidates not seen for the group's `evict_after`; returns how many rows and candidates."""
        return sum(self.eviction_steps(now_seconds))

    def eviction_steps(self, now_seconds: float) -> Iterator[int]:
        """As `evict`, in small steps, each with one lock; how many each has dropped."""
        if not self.evicts:
            return
        for bucket in self.buckets_in_use():
            for kind, memory, word in ((0, self.rows_memory, self.layout.seen_word), (1, self.waiting_memory, REST)):
                report = np.array([0, 0, -1, 0], np.int64)
                while memory.shelf.pool.buckets[bucket, COUNT] and report[2]:
                    before = int(report[3])
                    with self.locked(bucket) as stripe:
                        access.evict(
                            memory.shelf, self.tombs_memory.pool, self.marks, bucket, stripe, word, int(now_seconds),
                            int(self.group.evict_after_seconds), _EVICTION_STEP_ROWS, self.salts, kind, self._usage,
                            self._locks.words, report,
                        )  # fmt: skip
                        released = [each.take_released(stripe) for each in (self.rows_memory, self.waiting_memory)]
                        if report[0] != access.DONE:
                            self.provide(stripe, report)
                        if report[3] > before:
                            self.moves[stripe] += 1
                    for each, slabs in zip((self.rows_memory, self.waiting_memory), released, strict=True):
                        each.give_back(slabs)
                    yield int(report[3]) - before
                    self._let_pass(stripe)

    def _let_pass(self, stripe: int) -> None:
        """Gives those who wait for a stripe the time to take its lock: this thread would have it again sooner."""
        for _ in range(_NAPS):
            if not is_wanted(self._locks.words, stripe):
                return
            time.sleep(_NAP_SECONDS)

    @property
    def memory_bytes(self) -> int:
        """Of slabs, index and what is kept beside."""
        return self.rows_memory.bytes + self.waiting_memory.bytes + self.tombs_memory.bytes

    def usage(self) -> list[TableUsage]:
        """Rows and bytes per table, candidates and index shared out by entries.

        What a row more costs, for forecasts multiply it by rows: slabs and runs that few rows leave unused are not in
        it (see `memory_bytes`).
        """
        counts = self._usage.sum(axis=0)
        entries = counts.sum(axis=1)
        total = int(entries.sum())
        index = min(self.rows_memory.index.bytes + self.waiting_memory.index.bytes, round(_INDEX_BYTES * total))
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

    # Whole buckets

    def freeze(self, buckets: Sequence[int] | Array) -> None:
        """See Bucket.freeze; of one moment if nothing is pushed or evicted meanwhile.

        Raises:
            ElastrecError: one of them is frozen; none was changed, if nobody else freezes them now.
        """
        chosen = np.asarray(buckets, np.int64)
        if (self.marks[chosen, FROZEN] >= 0).any():
            raise ElastrecError("a bucket is frozen already; thaw it, or wait for its copy")
        stripes = self.stripe_of[chosen]
        self.frozen_rows[:] = 0
        for stripe in np.unique(stripes).tolist():
            with self._locks.held(stripe):
                mine = chosen[stripes == stripe]
                self.frozen_rows[stripe] = self._usage[stripe, :, 0]
                self.logged_from[mine] = np.where(self.marks[mine, LOGGING] > 0, self.marks[mine, LOG_FROM], NEVER)
                if self.logs:
                    self._begin_logs(mine[self.marks[mine, LOGGING] == 0])
                self.freeze_held(mine)

    def freeze_held(self, buckets: Array) -> None:
        """Freezes buckets [n] of one stripe, whose lock is held."""
        self.marks[buckets, VERSION] += 1
        self.begin_copies(buckets)

    def begin_copies(self, buckets: Array) -> None:
        """Buckets [n] whose version was raised are frozen as they were before. Their stripe's lock is held."""
        self.marks[buckets, FROZEN] = self.marks[buckets, VERSION] - 1
        for memory in (self.rows_memory, self.waiting_memory):
            memory.shelf.pool.buckets[buckets, COPIED] = 0

    def _begin_logs(self, buckets: Array) -> None:
        """What changes after this version of each bucket is logged. The lock of their stripe is held."""
        for memory in (self.rows_memory, self.waiting_memory):
            for bucket in buckets[memory.shelf.log.buckets[buckets, COUNT] > 0].tolist():
                memory.drop_log(bucket)
        for bucket in buckets[self.tombs_memory.pool.buckets[buckets, COUNT] > 0].tolist():
            self.drop_tombs(bucket)
        self.marks[buckets, LOGGING], self.marks[buckets, LOG_FROM] = 1, self.marks[buckets, VERSION]

    def remember(self, cut: str, buckets: Array) -> None:
        """Frozen buckets are saved as a whole or in part: from now on changes since then can be asked for."""
        versions = np.full(len(self.owned), NEVER, np.int64)
        versions[buckets] = self.marks[buckets, FROZEN]
        self._saved = {**dict(list(self._saved.items())[1 - _CUTS :]), cut: versions}

    def since(self, cut: str, buckets: Array) -> Array:
        """[b] versions of frozen buckets at a cut that was remembered; -1: what was deleted since is not known."""
        versions = self._saved.get(cut)
        if versions is None:
            return np.full(len(buckets), -1, np.int64)
        of_cut = versions[buckets]
        return np.where((of_cut < NEVER) & (self.logged_from[buckets] <= of_cut), of_cut, -1)

    def forget_changes(self, cut: str) -> None:
        """Nobody will ask for changes since an earlier cut than this one."""
        versions = self._saved.get(cut)
        if versions is None:
            return
        pools = self.rows_memory.log.pool, self.waiting_memory.log.pool, self.tombs_memory.pool
        is_long = np.any([pool.buckets[:, COUNT] > pool.shape.per_slab for pool in pools], axis=0)
        for bucket in np.flatnonzero(is_long & (versions < NEVER)).tolist():
            self.bucket(bucket).forget_changes(int(versions[bucket]))

    def thaw(self, buckets: Sequence[int] | Array) -> None:
        """See Bucket.thaw."""
        chosen = np.asarray(buckets, np.int64)
        stripes = self.stripe_of[chosen]
        for stripe in np.unique(stripes).tolist():
            mine = chosen[stripes == stripe]
            with self._locks.held(stripe):
                mine = mine[self.marks[mine, FROZEN] >= 0]
                self.marks[mine, FROZEN] = -1
                for memory in (self.rows_memory, self.waiting_memory):
                    for bucket in mine[memory.shelf.shadows.buckets[mine, COUNT] > 0].tolist():
                        memory.drop_shadows(bucket)

    def enter(self, lookup: Lookup, cells: Array, *, kind: int) -> None:
        """Enters cells [U, W] uint32 of a lookup's ids in owned buckets: rows (kind 0) or candidates (1)."""
        self._change_cells(access.take_in, lookup, cells, kind)

    def remove(self, lookup: Lookup) -> None:
        """Removes the rows and candidates of a lookup's ids."""
        nothing = np.empty((0, 1), np.uint32)
        for kind in (0, 1):
            self._change_cells(access.take_out, lookup, nothing, kind)

    def _change_cells(self, kernel: Callable[..., None], lookup: Lookup, cells: Array, kind: int) -> None:
        shelves: Sequence[Any] = self.rows_memory.shelf, self.waiting_memory.shelf

        def change(stripe: int) -> None:
            report = np.zeros(4, np.int64)
            self.moves[stripe] += 1
            while True:
                kernel(
                    shelves[kind], shelves[1 - kind], self.tombs_memory.pool, self.settings, self.marks,
                    lookup.request, stripe, cells, kind, self._usage, report,
                )  # fmt: skip
                self.take_back(stripe)
                if report[0] == access.DONE:
                    break
                self.provide(stripe, report)
            if kind == 0 and self.rows > self.capacity_rows:
                self.provide(stripe, np.array([access.FULL, 0, 0, 0]))

        self._visit(lookup, change)

    def forget_bucket(self, bucket: int) -> None:
        """See Bucket.drop."""
        with self.locked(bucket) as stripe:
            self.owned[bucket] = False
            self._counters[DROPS] += 1
            self.moves[stripe] += 1
            parts = [memory.detach(bucket) for memory in (self.rows_memory, self.waiting_memory)]
            self.marks[bucket] = 0
            self.marks[bucket, FROZEN] = -1
            for versions in self._saved.values():
                versions[bucket] = NEVER
            self.drop_tombs(bucket)
        # Nobody else knows these slabs any more.
        for kind, memory in enumerate((self.rows_memory, self.waiting_memory)):
            slabs, count = parts[kind]
            lost = np.zeros(len(self.salts), np.int64)
            access.count_tables(memory.shelf.pool, slabs, count, lost)
            with self._locks.held(stripe):
                self._usage[stripe, :, kind] -= lost
            memory.rows.free(slabs.tolist())

    def trim(self, bucket: int, version: int) -> None:
        """Frees slabs of logs and tombstones whose entries are all of this version or before. The lock is held."""
        for memory, word in (
            (self.rows_memory.log, 1),
            (self.waiting_memory.log, 1),
            (self.tombs_memory, CELL_VERSION),
        ):
            pool = memory.pool
            slabs = np.empty(-(-int(pool.buckets[bucket, COUNT]) // pool.shape.per_slab), np.int32)
            memory.free(slabs[: cut_first(pool, bucket, word, version, slabs)].tolist())

    def drop_tombs(self, bucket: int) -> None:
        """Frees a bucket's tombstones. The lock is held."""
        slabs, _ = detach(self.tombs_memory.pool, bucket)
        self.tombs_memory.free(slabs.tolist())
