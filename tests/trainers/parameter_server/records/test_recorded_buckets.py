"""The buckets of a server compared with dictionaries, for any interleaving of requests, moves, copies, records and
restores.

This is `test_model` with the stores of a server that writes real records, full ones and deltas. Each record must
restore the contents at the time of its save.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from elastrec.checkpoints import commit_record, open_record
from elastrec.checkpoints.manifest import Contents
from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.specs.job import TrainingJob
from elastrec.trainers.parameter_server.records.share import restore, save_part
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from elastrec.trainers.parameter_server.storage import RowStore
from elastrec.trainers.parameter_server.storage import store as store_module
from tests.trainers.parameter_server.running import routing_of, training_job
from tests.trainers.parameter_server.storage.test_model import (
    BUCKETS,
    DIMENSION,
    KEEP_SECONDS,
    RULE,
    TABLES,
    Buckets,
    Oracle,
    of_bucket,
)


class RecordedBuckets(Buckets):
    """`here` is the store of a server; records lie in a folder on the disk."""

    save_and_restore = None  # type: ignore[assignment]  # real records take its place

    @initialize(stripes=st.sampled_from([1, 4]))
    def begin(self, stripes: int) -> None:
        super().begin(stripes)
        # Few cells per slab also after a restore.
        self.patch.setattr(store_module, "_SLAB_BYTES", 256)
        self.patch.setattr(store_module, "_CANDIDATE_SLAB_BYTES", 128)
        self.job = job_of(admit_after=self.admit_after, evicts=self.evicts)
        self.folder = Path(tempfile.mkdtemp())
        self.epoch = self.generation = 1
        self.server = self.server_of(stripes)
        self.server.start_empty(self.routing(), self.generation)
        (self.here,) = self.server.stores
        # Record → what was held; in the order in which they were saved.
        self.records: dict[str, Oracle] = {}

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.folder)

    def server_of(self, cores: int) -> ParameterServer:
        return ParameterServer(
            "ps-0",
            self.job.spec,
            plan=self.here.plan,
            capacity_rows=10_000,
            clock=lambda: self.now,
            granted_cores=cores,
        )

    def routing(self) -> object:
        return routing_of(["nowhere"], buckets=BUCKETS, epoch=self.epoch)

    def settle(self) -> None:
        """A server writes its part of a record while nothing else copies its buckets, and answers for all of them."""
        if self.copying is not None:
            self.go_on_copying(1, gives_up=True)
        if self.dropped:
            self.take_back()

    def name(self) -> str:
        return f"{len(self.records) + 1:012d}-8c99a8c9-{self.now:08d}"

    @rule(is_given_up=st.sampled_from([False, False, False, True]))
    def save(self, is_given_up: bool) -> None:
        """A full record, or a part that is given up after its buckets are frozen."""
        self.settle()
        if not is_given_up:
            self.write("")
            return
        asked = iter([True, False])
        with pytest.raises(CheckpointError, match="not wanted any more"):
            save_part(self.server, f"{self.folder}/{self.name()}-void", lambda: next(asked), cut="void")

    @precondition(lambda self: self.records)
    @rule(back=st.integers(1, 3))
    def save_changes(self, back: int) -> None:
        """What has changed since the `back`-th last record, as far as the server knows it."""
        self.settle()
        self.write(list(self.records)[-min(back, len(self.records))])

    def write(self, base: str) -> None:
        uri = f"{self.folder}/{self.name()}"
        part = save_part(self.server, uri, cut=Path(uri).name, base=Path(base).name if base else "")
        commit_record(
            uri, [part], b"{}", job=self.job, job_id="clicks-1", kind="periodic", step=len(self.records) + 1,
            generation=self.generation, base=base,
        )  # fmt: skip
        self.records[uri] = dict(self.oracle[0]), dict(self.oracle[1])
        assert base or open_record(uri).manifest.contents is Contents.FULL
        another = self.server_of(1)
        restore(another, uri, self.routing(), 1)
        self.check_all(another.stores[0])

    @precondition(lambda self: self.records)
    @rule(number=st.integers(0, 50))
    def roll_back(self, number: int) -> None:
        """The server forgets everything and restores one of the records."""
        self.settle()
        uri = list(self.records)[number % len(self.records)]
        self.generation += 1
        restore(self.server, uri, self.routing(), self.generation)
        (self.here,) = self.server.stores
        self.oracle = dict(self.records[uri][0]), dict(self.records[uri][1])
        self.given.clear()
        self.check_all(self.here)

    def check_all(self, store: RowStore) -> None:
        for bucket in range(BUCKETS):
            changes = store.bucket(bucket).changes(-1)
            self.check(changes.rows, changes.candidates, of_bucket(self.oracle, bucket))


class RecordedBucketsOfAdmittedRows(RecordedBuckets):
    admit_after, evicts = 2, True


def job_of(*, admit_after: int, evicts: bool) -> TrainingJob:
    """A job of so few buckets as no job file may ask for: each of them is in the middle of something."""
    table = {"admit_after": admit_after, "evict_after": KEEP_SECONDS if evicts else None}
    job = training_job(
        model={"architecture": "dlrm", "embedding_dimension": DIMENSION},
        data={"path": "clicks", "dense": [{"name": "n"}], "sparse": [{"name": name} for name in TABLES]},
        tables=dict.fromkeys(TABLES, table), checkpoint={"deltas": 100},
    )  # fmt: skip
    resources = job.spec.resources.model_copy(update={"virtual_buckets": BUCKETS})
    rows = job.spec.optimizers.model_copy(update={"rows": RULE})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"resources": resources, "optimizers": rows})})


for machine in (RecordedBuckets, RecordedBucketsOfAdmittedRows):
    machine.TestCase.settings = settings(max_examples=25, stateful_step_count=60, deadline=None)

test_buckets_of_a_server_that_saves_and_restores = RecordedBuckets.TestCase
test_admitted_and_evicted_rows_of_a_server_that_saves_and_restores = RecordedBucketsOfAdmittedRows.TestCase
