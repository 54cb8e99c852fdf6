"""The rows of one table group on one server: index, values, optimiser state, and their exact accounting.

Not thread-safe; the server serialises its calls. Legend as in kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from elastrec.platform.specs.errors import IncompatibleError
from elastrec.platform.specs.job import OptimizerSpec
from elastrec.platform.transport.job_messages import TableUsage
from elastrec.trainers.parameter_server import kernels
from elastrec.trainers.parameter_server.arena import ServerMemoryError, physical_memory_bytes, reserve
from elastrec.trainers.parameter_server.hashing import buckets_of, seed_hash
from elastrec.trainers.parameter_server.plan import TableGroup, TablePlan
from elastrec.trainers.parameter_server.row_rules import RowRule

Array = np.ndarray[Any, Any]

_SLOT_BYTES = 16
_SMALLEST_RESERVATION_ROWS = 2**20


class RowStore:
    """Growable rows of the tables of one group.

    Args:
        owned: [V] bool, the buckets that this server may hold.
        capacity_rows: most rows; default: what the machine's memory could hold at all.
    """

    def __init__(
        self,
        plan: TablePlan,
        group: TableGroup,
        optimizer: OptimizerSpec,
        owned: Array,
        capacity_rows: int | None = None,
    ) -> None:
        self.plan, self.group = plan, group
        self.rule = RowRule(optimizer, group.dimension)
        self._owned = owned
        self._evicts = group.evict_after_seconds > 0
        self.row_bytes = 4 * (group.dimension + self.rule.state_width) + 4 + (4 if self._evicts else 0)
        rows = capacity_rows or max(_SMALLEST_RESERVATION_ROWS, physical_memory_bytes() // self.row_bytes)
        self._values = reserve((rows, group.dimension), np.float32)
        self._state = reserve((rows, self.rule.state_width), np.float32)
        self._versions = reserve((rows,), np.uint32)
        self._last_seen = reserve((rows if self._evicts else 0,), np.uint32)
        self._free_rows = reserve((rows if self._evicts else 0,), np.int64)
        # Regions are at least 3/8 full, and each left-behind one was half of its follower: 8 slots per row suffice.
        self._slots = reserve((8 * rows + 64 * plan.virtual_buckets, 2), np.int64)
        self._regions = np.zeros((plan.virtual_buckets, 2), np.int64)
        self._used = np.zeros(plan.virtual_buckets, np.int64)
        self._allocator = np.zeros(64, np.int64)
        self._row_allocator = np.zeros(2, np.int64)
        tables = group.end_table - group.first_table
        self._table_rows = np.zeros(tables, np.int64)
        self._table_candidates = np.zeros(tables, np.int64)
        self._salts = np.array([table.salt for table in plan.tables], np.uint64)
        self._ranges = np.array([table.initial_range for table in plan.tables], np.float64)
        self._zero_columns = np.array([table.zero_columns for table in plan.tables], np.int64)
        self._seed_hash = np.uint64(seed_hash(plan.seed))
        self._none = np.empty(0, np.int32)
        self.version = 0
        self.evictions = 0

    @property
    def rows(self) -> int:
        return int(self._table_rows.sum())

    def pull(self, counts: Array, ids: Array, *, read_only: bool, rows: Array | None = None) -> Array:
        """Values [U, D] float32 of ids [U] int64, `counts` [T] int32 of them per table.

        Args:
            rows: [U] int64 out, what `push` calls `known`; holds until `evictions` changes.
        """
        out = np.empty((len(ids), self.group.dimension), np.float32)
        rows = np.empty(len(ids), np.int64) if rows is None else rows
        kernels.pull_rows(
            counts, ids, self.group.first_table, self._salts, self._ranges, self._zero_columns, self._seed_hash,
            read_only, self.group.admit_after, self._slots, self._regions, self._values, rows, out,
        )  # fmt: skip
        return out

    def push(
        self,
        counts: Array,
        ids: Array,
        sightings: Array,
        gradients: Array,
        now_seconds: float,
        known: Array | None = None,
    ) -> None:
        """Applies gradients [U, D] of distinct ids, making rows that are due.

        Args:
            known: what `pull` told of the same counts and ids since the last eviction: spares looking them up again.

        Raises:
            IncompatibleError: an id's bucket belongs to another server; nothing was changed.
            ServerMemoryError: no room for more rows.
        """
        group = self.group
        if known is None:
            # Finding rows together and then making the few that are new beats doing both id by id.
            known = np.empty(len(ids), np.int64)
            kernels.find_rows(counts, ids, group.first_table, self._salts, self._slots, self._regions, known)
        now = int(now_seconds)
        # Most pushes name no row that has yet to be made.
        all_known = len(known) > 0 and int(known.min()) >= 0
        rows = known if all_known else self._make(counts, ids, sightings, known, now)
        self.version += 1
        self.rule.apply(rows, gradients, self._values, self._state, self._versions, np.uint32(self.version))
        if self._evicts:
            self._last_seen[rows[rows >= 0]] = now

    def _make(self, counts: Array, ids: Array, sightings: Array, known: Array, now_seconds: int) -> Array:
        """Numbers [U] of the rows, made where they are due; see `push`."""
        group = self.group
        if not kernels.check_owned(counts, ids, known, group.first_table, self._salts, self._owned):
            raise IncompatibleError("a push names ids whose buckets belong to another server")
        rows = np.empty(len(ids), np.int64)
        code = kernels.make_rows(
            counts, ids, known, sightings if group.admit_after > 1 else self._none, group.first_table, self._salts,
            self._ranges, self._zero_columns, self._seed_hash, group.admit_after,
            (now_seconds // 60) & kernels.MINUTES, self.rule.initial_state, self._slots, self._regions, self._used,
            self._allocator, self._free_rows, self._row_allocator, self._table_rows, self._table_candidates,
            self._values, self._state, rows,
        )  # fmt: skip
        self._check(code)
        return rows

    def _check(self, code: int) -> None:
        if code != kernels.OK:
            raise ServerMemoryError(
                f"no room for another row: {self.rows} rows of {self.row_bytes} bytes are held; give the job more "
                "parameter servers, or limit its tables (hash_size, admit_after, evict_after)"
            )

    def evict(self, now_seconds: float) -> int:
        """Drops rows and candidates not seen for the group's `evict_after`; returns how many rows and candidates."""
        if not self._evicts:
            return 0
        dropped = 0
        self.evictions += 1
        for bucket in np.flatnonzero(self._used):
            dropped += kernels.evict_bucket(
                bucket, int(now_seconds), int(self.group.evict_after_seconds), self.group.first_table, self._salts,
                self._slots, self._regions, self._used, self._free_rows, self._row_allocator, self._table_rows,
                self._table_candidates, self._last_seen,
            )  # fmt: skip
        return dropped

    def usage(self) -> list[TableUsage]:
        """Rows and bytes per table; the index is shared out by entries, so that the sum is what is really used."""
        entries = self._table_rows + self._table_candidates
        index_bytes = int(self._allocator[0]) * _SLOT_BYTES
        total = max(1, int(entries.sum()))
        shares = [index_bytes * int(count) // total for count in entries]
        if shares:
            shares[-1] += index_bytes - sum(shares)
        return [
            TableUsage(
                table=self.plan.tables[self.group.first_table + index].name,
                rows=int(rows),
                bytes=int(rows) * self.row_bytes + shares[index],
            )
            for index, rows in enumerate(self._table_rows)
        ]

    def export_bucket(self, bucket: int) -> Iterator[tuple[str, dict[str, Array]]]:
        """(table, arrays) of what the bucket holds, ordered by id.

        Arrays: `ids` [n] int64, `values` [n, D], `state` [n, S] float32; with eviction `last_seen` [n] uint32; with
        admission `candidate_ids` [c] int64, `candidate_sightings` [c] uint16, `candidate_minutes` [c] uint32.
        """
        keys, entries = np.empty(self._used[bucket], np.int64), np.empty(self._used[bucket], np.int64)
        kernels.list_entries(bucket, self._slots, self._regions, keys, entries)
        tables = (entries >> kernels.TABLE_SHIFT) - 1
        # As lexsort((keys, tables)): numpy sorts 64-bit numbers fast where the order of equals is free, small ones by
        # radix, and no id is in a table twice.
        order = np.argsort(keys)
        order = order[np.argsort(tables[order].astype(np.min_scalar_type(len(self.plan.tables))), kind="stable")]
        keys, entries, tables = keys[order], entries[order], tables[order]
        ends = np.append(np.flatnonzero(np.diff(tables)) + 1, len(tables)) if len(tables) else np.empty(0, np.int64)
        start = 0
        for end in ends.tolist():
            ids, payloads = keys[start:end], entries[start:end] & kernels.PAYLOAD
            table, start = tables[start], end
            waiting = (payloads & kernels.CANDIDATE) != 0
            rows = payloads[~waiting]
            arrays = {"ids": ids[~waiting], "values": self._values[rows], "state": self._state[rows]}
            if self._evicts:
                arrays["last_seen"] = self._last_seen[rows]
            if self.group.admit_after > 1:
                arrays["candidate_ids"] = ids[waiting]
                arrays["candidate_sightings"] = (payloads[waiting] & kernels.SIGHTINGS).astype(np.uint16)
                arrays["candidate_minutes"] = ((payloads[waiting] >> 16) & kernels.MINUTES).astype(np.uint32)
            yield self.plan.tables[table].name, arrays

    def import_rows(self, table: str, arrays: dict[str, Array], *, keep_state: bool, now_seconds: float) -> None:
        """Takes rows as `export_bucket` gives them, those in owned buckets only.

        Args:
            keep_state: else the optimiser state starts anew (another update rule wrote it).
            now_seconds: stands in for `last_seen` where the record does not know it.
        """
        index = self.plan.by_name[table].index
        ids = np.ascontiguousarray(arrays["ids"], np.int64)
        mine: Any = self._is_owned(index, ids)
        if mine.all():
            mine = slice(None)  # nothing is copied once more to be left out
        ids = ids[mine]
        first = int(self._row_allocator[0])
        end = first + len(ids)
        if end > len(self._values):
            self._check(kernels.ROWS_FULL)
        self._row_allocator[0] = end
        self._values[first:end] = arrays["values"][mine]
        self._state[first:end] = arrays["state"][mine] if keep_state else self.rule.initial_state
        if self._evicts:
            self._last_seen[first:end] = arrays["last_seen"][mine] if "last_seen" in arrays else int(now_seconds)
        self._enter(index, ids, np.arange(first, end, dtype=np.int64))
        if self.group.admit_after > 1 and "candidate_ids" in arrays:
            waiting = np.ascontiguousarray(arrays["candidate_ids"], np.int64)
            mine = self._is_owned(index, waiting)
            seen = arrays["candidate_sightings"][mine].astype(np.int64)
            minutes = arrays["candidate_minutes"][mine].astype(np.int64)
            # The job file may ask for fewer sightings now: the next one admits.
            seen = np.minimum(seen, self.group.admit_after - 1)
            self._enter(index, waiting[mine], kernels.CANDIDATE | (minutes << 16) | seen)

    def _is_owned(self, table: int, ids: Array) -> Array:
        mine: Array = self._owned[buckets_of(ids, self.plan.tables[table].name, self.plan.virtual_buckets)]
        return mine

    def _enter(self, table: int, ids: Array, payloads: Array) -> None:
        self._check(
            kernels.put_entries(
                table, ids, payloads, self.group.first_table, self._salts, self._slots, self._regions, self._used,
                self._allocator, self._table_rows, self._table_candidates,
            )
        )  # fmt: skip
