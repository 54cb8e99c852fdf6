"""Helpers that write rows of a bucket and table, parts of servers, and whole records."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from elastrec.checkpoints.answers import answer
from elastrec.checkpoints.commit import commit_record, new_record_uri
from elastrec.checkpoints.parts import PartManifest, PartWriter
from elastrec.checkpoints.sections import SectionKind
from elastrec.checkpoints.stores.store import Store
from elastrec.platform.specs.job import TrainingJob

TABLES = ["ad", "user"]
"""Of the jobs that `make_job` makes."""
BUCKETS = range(6)
VIRTUAL_BUCKETS = 256
DIMENSION = 4
DENSE = np.arange(10, dtype=np.float32)


def write_bucket(
    writer: PartWriter,
    bucket: int,
    table: int,
    arrays: Mapping[str, np.ndarray],
    *,
    group: int = 0,
    kind: SectionKind = SectionKind.ROWS,
) -> None:
    """Writes a chunk with entries of one bucket and one table, by its number in the group."""
    count = len(arrays["ids"])
    versions = {"versions": np.zeros(count, np.uint32)} if "versions" not in arrays else {}
    columns = {**arrays, "tables": np.full(count, table, np.uint16), **versions}
    writer.write_chunk(group, kind, np.array([bucket]), np.array([count]), columns)


def rows_of(bucket: int) -> dict[str, np.ndarray]:
    """Deterministic rows; every third bucket is empty."""
    rng = np.random.default_rng(bucket)
    count = 0 if bucket % 3 == 2 else 3 + bucket
    return {
        "ids": rng.integers(0, 2**63, count, dtype=np.uint64),
        "values": rng.random((count, DIMENSION), dtype=np.float32),
        "accumulator": rng.random(count, dtype=np.float32),
    }


def write_part(uri: str, server: int, servers: int) -> PartManifest:
    """The part of one server of several: rows of both tables, and its share of one dense parameter."""
    lower, upper = 10 * server // servers, 10 * (server + 1) // servers
    mine = range(server, VIRTUAL_BUCKETS, servers)
    groups = [answer(TABLES, mine, last=7)]
    with PartWriter(uri, f"ps-{server}", groups=groups, dense_ranges=[(lower, upper)], generation=2) as writer:
        for table in range(len(TABLES)):
            for bucket in BUCKETS:
                if bucket % servers == server:
                    write_bucket(writer, bucket, table, rows_of(bucket))
        slices = {"value": DENSE[lower:upper], "moment1": -DENSE[lower:upper], "step": np.array(7)}
        writer.write_dense("over.weight", (2, 5), lower, slices)
        return writer.finish()


def save(
    store: Store,
    job: TrainingJob,
    *,
    job_id: str = "clicks-1",
    step: int = 100,
    servers: int = 2,
    kind: str = "periodic",
    created: float = 0.0,
    interval_end: str = "",
    term: int = 0,
) -> str:
    """Commits a record and returns its URI."""
    uri = new_record_uri(store, job.metadata.name, job_id, step)
    parts = [write_part(uri, server, servers) for server in range(servers)]
    commit_record(
        uri, parts, f'{{"step": {step}}}'.encode(), job=job, job_id=job_id, kind=kind, step=step, generation=2,
        interval=("", interval_end), created_unix_seconds=created or float(step), term=term,
    )  # fmt: skip
    return uri
