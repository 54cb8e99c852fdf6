"""Two stores compared with dictionaries, for any interleaving of operations on their buckets."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from elastrec.checkpoints.rows import cell_ids, cell_tables
from elastrec.platform.specs.errors import ElastrecError, IncompatibleError
from elastrec.platform.specs.job import TableSpec
from elastrec.platform.specs.optimizers import OptimizerKind, OptimizerSpec
from elastrec.trainers.parameter_server.hashing import buckets_of, initial_rows
from elastrec.trainers.parameter_server.plan import TablePlan, make_plan
from elastrec.trainers.parameter_server.storage import Changes, RowStore, copying
from elastrec.trainers.parameter_server.storage import store as store_module
from elastrec.trainers.parameter_server.storage.bucket import LISTED_PARTS
from elastrec.trainers.parameter_server.storage.columns import row_columns
from elastrec.trainers.parameter_server.storage.copying import Copied, copy_frozen
from elastrec.trainers.parameter_server.storage.kernels.arrays import LOGGING
from tests.trainers.parameter_server.storage.copies import copied, take

BUCKETS, DIMENSION, TABLES = 4, 2, ("a", "b")
KEEP_SECONDS = 100.0
RULE = OptimizerSpec(kind=OptimizerKind.ADAGRAD, learning_rate=0.5)

# Runs of ids, that requests often name the same ones.
ids_of_a_request = st.builds(
    lambda first, count: list(range(first, first + count)), st.integers(0, 90), st.integers(1, 60)
)
bucket_numbers = st.integers(0, BUCKETS - 1)

# (table, id) → values and accumulator, last seen; or sightings and last seen, of a candidate.
Row = tuple[np.ndarray, float, int]
Oracle = tuple[dict[tuple[str, int], Row], dict[tuple[str, int], tuple[int, int]]]


def bucket_of(key: tuple[str, int]) -> int:
    return int(buckets_of(np.array([key[1]]), key[0], BUCKETS)[0])


def first_value(key: tuple[str, int]) -> np.ndarray:
    return initial_rows(np.array([key[1]]), key[0], seed=3, initial_range=0.5, dimension=DIMENSION)[0]


def of_bucket(oracle: Oracle, bucket: int) -> Oracle:
    return tuple({key: value for key, value in part.items() if bucket_of(key) == bucket} for part in oracle)  # type: ignore[return-value]


class Buckets(RuleBasedStateMachine):
    """Requests go to `here`; buckets may be moved to `there`, which gets changes only."""

    admit_after, evicts = 1, False

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        # So that a copy pauses in the middle of buckets.
        self.patch.setattr(copying, "COPY_STEP_CELLS", 7)

    def teardown(self) -> None:
        self.patch.undo()

    @initialize(stripes=st.sampled_from([1, 4]))
    def begin(self, stripes: int) -> None:
        admit_after, evicts = self.admit_after, self.evicts
        spec = TableSpec(admit_after=admit_after, evict_after=KEEP_SECONDS if evicts else None)
        plan = make_plan(
            dict.fromkeys(TABLES, DIMENSION), settings=dict.fromkeys(TABLES, spec), initial_range=0.5, rows=RULE,
            virtual_buckets=BUCKETS, seed=3,
        )  # fmt: skip
        self.here, self.there = (self.store(plan, np.ones(BUCKETS, np.bool_), stripes) for _ in range(2))
        self.now = 1000
        self.oracle: Oracle = ({}, {})
        self.dropped: set[int] = set()
        # Until which version of `here` `there` was brought, which part of it is left, and what it holds once none is.
        self.given: dict[int, tuple[int, tuple[int, int], Oracle | None]] = {}
        # A copy of many buckets that is under way: of which, as they were, and what has come of it.
        self.copying: tuple[set[int], Oracle, Iterator[Copied], list[Copied]] | None = None

    @staticmethod
    def store(plan: TablePlan, owned: np.ndarray, stripes: int) -> RowStore:
        with pytest.MonkeyPatch.context() as patch:
            # A few cells per slab, so that every bucket has several.
            patch.setattr(store_module, "_SLAB_BYTES", 256)
            patch.setattr(store_module, "_CANDIDATE_SLAB_BYTES", 128)
            return RowStore(plan, plan.groups[0], owned, 10_000, stripes)

    def counts(self, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
        return np.array([len(ids), len(ids)], np.int32), np.array(ids * 2, np.int64)

    def value_of(self, key: tuple[str, int], *, read_only: bool) -> np.ndarray:
        if key in self.oracle[0]:
            return self.oracle[0][key][0]
        if read_only or self.admit_after > 1:
            return np.zeros(DIMENSION, np.float32)
        return first_value(key)

    @rule(
        ids=ids_of_a_request,
        gradient=st.floats(-1, 1, width=32),
        pulled_before=st.booleans(),
        seconds=st.integers(0, 60),
    )
    def push(self, ids: list[int], gradient: float, pulled_before: bool, seconds: int) -> None:
        ids = [key for key in ids if not any(bucket_of((table, key)) in self.dropped for table in TABLES)]
        if not ids:
            return
        self.now += seconds
        counts, both = self.counts(ids)
        lookup = self.here.pull(counts, both, read_only=False)[1] if pulled_before else None
        gradients = np.full((len(both), DIMENSION), gradient, np.float32)
        self.here.push(counts, both, np.ones(len(both), np.int32), gradients, self.now, lookup)
        rows, waiting = self.oracle
        for key in ((table, number) for table in TABLES for number in ids):
            if key not in rows:
                seen = waiting.pop(key, (0, 0))[0] + 1
                if seen < self.admit_after:
                    waiting[key] = seen, self.now
                    continue
                rows[key] = first_value(key), np.float32(0.0), self.now
            value, total, _ = rows[key]
            step = np.full(DIMENSION, gradient, np.float32)
            total = np.float32(total + (step * step).mean())
            rows[key] = value - np.float32(0.5) * step / (np.sqrt(total) + np.float32(RULE.epsilon)), total, self.now

    @rule(ids=ids_of_a_request, read_only=st.booleans())
    def pull(self, ids: list[int], read_only: bool) -> None:
        counts, both = self.counts(ids)
        if any(bucket_of((table, key)) in self.dropped for table in TABLES for key in ids):
            with pytest.raises(IncompatibleError):
                self.here.pull(counts, both, read_only=read_only)
            return
        expected = [self.value_of((table, key), read_only=read_only) for table in TABLES for key in ids]
        np.testing.assert_allclose(self.here.pull(counts, both, read_only=read_only)[0], expected, rtol=1e-4, atol=1e-5)

    @precondition(lambda self: self.evicts)
    @rule(seconds=st.integers(0, 150))
    def evict(self, seconds: int) -> None:
        self.now += seconds
        late = 0
        for part in self.oracle:
            for key in [key for key, value in part.items() if self.now - value[-1] > KEEP_SECONDS]:
                del part[key]
                late += 1
        assert self.here.evict(self.now) == late

    def is_copied(self, bucket: int) -> bool:
        return self.copying is not None and bucket in self.copying[0]

    @precondition(lambda self: self.copying is None)
    @rule(chunk_bytes=st.sampled_from([1, 100, 400, 10_000]))
    def begin_copy(self, chunk_bytes: int) -> None:
        """Freezes all buckets that are there, to be copied chunk by chunk."""
        buckets = [bucket for bucket in range(BUCKETS) if bucket not in self.dropped]
        self.here.cuts.freeze(buckets)
        whole: Oracle = tuple(
            {key: value for key, value in part.items() if bucket_of(key) in buckets} for part in self.oracle
        )  # type: ignore[assignment]
        self.copying = set(buckets), whole, copy_frozen(self.here, np.array(buckets, np.int64), chunk_bytes), []

    @precondition(lambda self: self.copying is not None)
    @rule(chunks=st.integers(1, 30), gives_up=st.sampled_from([False, False, False, True]))
    def go_on_copying(self, chunks: int, gives_up: bool) -> None:
        assert self.copying is not None
        buckets, expected, rest, found = self.copying
        if gives_up:
            self.here.cuts.thaw(sorted(buckets))
            self.copying = None
            return
        for _ in range(chunks):
            chunk = next(rest, None)
            if chunk is None:
                self.copying = None
                cells = [
                    np.concatenate(
                        [np.empty((0, width), np.uint32), *(each.cells for each in found if each.kind == kind)]
                    )
                    for kind, width in ((0, self.here.layout.width), (1, 5))
                ]
                self.check(*cells, expected)
                return
            named = np.repeat(chunk.buckets, chunk.counts).tolist()
            assert named == [
                bucket_of((TABLES[table], key))
                for table, key in zip(cell_tables(chunk.cells), cell_ids(chunk.cells).tolist(), strict=True)
            ]
            found.append(chunk)

    @rule(bucket=bucket_numbers)
    def mark(self, bucket: int) -> None:
        before = self.here.bucket(bucket).version
        assert self.here.bucket(bucket).mark() == before < self.here.bucket(bucket).version

    @rule(bucket=bucket_numbers, forget=st.booleans(), part_bytes=st.sampled_from([1, 200, 10_000]))
    def give(self, bucket: int, forget: bool, part_bytes: int) -> None:
        """`there` takes what has changed since it was brought up to date, or a part of what is there."""
        if bucket in self.dropped:
            return
        version, left, _ = self.given.get(bucket, (-1, (0, 0), None))
        was_logging = self.here.marks[bucket, LOGGING]
        try:
            changes = self.here.bucket(bucket).changes(version, left, part_bytes)
        except ElastrecError:
            assert self.is_copied(bucket) and not was_logging
            return
        is_part = changes.is_whole or left != (0, 0)
        assert len(changes.rows) <= 1 or changes.rows.nbytes <= (1 if is_part else LISTED_PARTS) * part_bytes
        self.there.bucket(bucket).take_in(changes)
        # What was copied in several parts is of no one moment; what has changed since makes it so.
        is_settled = changes.left == (0, 0) and (changes.is_whole or left == (0, 0))
        assert version >= 0 or changes.is_whole
        self.given[bucket] = changes.version, changes.left, of_bucket(self.oracle, bucket) if is_settled else None
        if forget and is_settled and not self.is_copied(bucket):
            self.here.bucket(bucket).forget_changes(changes.version)

    @precondition(lambda self: not self.dropped)
    @rule(bucket=bucket_numbers)
    def drop(self, bucket: int) -> None:
        if self.is_copied(bucket):
            return
        self.here.bucket(bucket).drop()
        self.dropped.add(bucket)
        self.given.pop(bucket, None)
        for part in self.oracle:
            for key in [key for key in part if bucket_of(key) == bucket]:
                del part[key]

    @precondition(lambda self: self.dropped)
    @rule()
    def take_back(self) -> None:
        """A dropped bucket returns as `there` has it."""
        bucket = next(iter(self.dropped))
        kept = self.there.bucket(bucket).changes(-1)
        handle = self.here.bucket(bucket)
        handle.own()
        handle.take_in(kept)
        self.dropped.discard(bucket)
        held = self.contents(kept.rows, kept.candidates)
        for part, new in zip(self.oracle, held, strict=True):
            part.update(new)  # type: ignore[arg-type]

    @rule()
    def save_and_restore(self) -> None:
        if self.copying:
            return
        new = self.store(self.here.plan, self.here.owned, len(self.here.moves))
        take(new, copied(self.here, chunk_bytes=200))
        self.here = new
        self.given.clear()

    def contents(self, rows: np.ndarray, candidates: np.ndarray) -> Oracle:
        held: Oracle = ({}, {})
        columns = row_columns(self.here.layout, rows)
        seen = columns.get("last_seen", np.zeros(len(rows)))
        for number, (table, key) in enumerate(zip(columns["tables"], columns["ids"].tolist(), strict=True)):
            held[0][TABLES[table], key] = columns["values"][number], columns["state"][number, 0], int(seen[number])
        for cell in candidates:
            key = int(cell[:2].copy().view(np.int64)[0])
            held[1][TABLES[int(cell[3]) & 0xFFFF], key] = int(cell[3]) >> 16, int(cell[4])
        return held

    def check(self, rows: np.ndarray, candidates: np.ndarray, expected: Oracle) -> None:
        held = self.contents(rows, candidates)
        assert held[0].keys() == expected[0].keys() and len(rows) == len(held[0])
        assert held[1] == expected[1] and len(candidates) == len(held[1])
        for key, (value, total, seen) in expected[0].items():
            np.testing.assert_allclose(held[0][key][0], value, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(held[0][key][1], total, rtol=1e-4, atol=1e-5)
            assert not self.evicts or held[0][key][2] == seen

    @invariant()
    def rows_are_counted(self) -> None:
        if not hasattr(self, "oracle"):
            return
        assert self.here.rows == len(self.oracle[0]) == sum(usage.rows for usage in self.here.usage())
        assert sum(self.here.bucket(bucket).rows for bucket in range(BUCKETS)) == self.here.rows

    @invariant()
    def there_has_what_it_was_given(self) -> None:
        for bucket, (_, _, expected) in getattr(self, "given", {}).items():
            if expected is not None:
                changes: Changes = self.there.bucket(bucket).changes(-1)
                self.check(changes.rows, changes.candidates, expected)


class EvictedBuckets(Buckets):
    evicts = True


class AdmittedBuckets(Buckets):
    admit_after, evicts = 2, True


_SETTINGS = settings(max_examples=20, stateful_step_count=40, deadline=None)
for machine in (Buckets, EvictedBuckets, AdmittedBuckets):
    machine.TestCase.settings = _SETTINGS

test_buckets = Buckets.TestCase
test_buckets_whose_rows_are_evicted = EvictedBuckets.TestCase
test_buckets_whose_rows_are_admitted_at_their_second_sighting = AdmittedBuckets.TestCase
