"""Servers filled without workers, their contents, and records of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from elastrec.checkpoints import commit_record
from elastrec.platform.specs.job import TrainingJob
from elastrec.trainers.parameter_server.records.share import save_part
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from elastrec.trainers.parameter_server.storage.copying import CANDIDATES, ROWS
from tests.trainers.parameter_server.running import routing_of, training_job
from tests.trainers.parameter_server.storage.copies import columns_of

Contents = dict[tuple[str, str, int], tuple[Any, ...]]


def job_with(buckets: int = 64, **tables: dict[str, Any]) -> TrainingJob:
    """A job with the tables `user` and `item`."""
    return training_job(tables=tables, resources={"virtual_buckets": buckets})


def servers_of(job: TrainingJob, count: int, *, now: float = 1000.0) -> list[ParameterServer]:
    """Empty ones; `now_seconds` may be set."""
    routing = routing_of(["nowhere"] * count, buckets=job.spec.resources.virtual_buckets)
    servers = []
    for number in range(count):
        server = ParameterServer(f"ps-{number}", job.spec, capacity_rows=200_000, clock=lambda: now, granted_cores=2)
        server.start_empty(routing, 1)
        servers.append(server)
    return servers


def push(servers: Sequence[ParameterServer], ids: Sequence[int], gradient: float, now: float = 1000.0) -> None:
    """A gradient for these ids of both tables, on the servers that own their buckets."""
    for server in servers:
        for store in server.stores:
            keys = np.array(ids, np.int64)
            tables = store.group.end_table - store.group.first_table
            lookup = store.look_up(np.full(tables, len(keys), np.int32), np.tile(keys, tables))
            mine = store.owned[lookup.request.buckets]
            counts = np.array([mine[table * len(keys) :][: len(keys)].sum() for table in range(tables)], np.int32)
            total = int(counts.sum())
            gradients = np.full((total, store.group.dimension), gradient, np.float32)
            store.push(counts, np.tile(keys, tables)[mine], np.ones(total, np.int32), gradients, now)


def contents(servers: Sequence[ParameterServer], *, versions: bool = True) -> Contents:
    """(kind, table, id) → all that is known of it, by all servers together; nothing may be held twice."""
    found: Contents = {}
    for server in servers:
        for store in server.stores:
            names = [table.name for table in store.plan.tables[store.group.first_table : store.group.end_table]]
            for kind in (ROWS, CANDIDATES):
                columns = columns_of(store, kind)
                left_out = {"ids", "tables", "buckets"} | (set() if versions else {"versions"})
                tables, ids = (np.asarray(columns.get(name, ())).tolist() for name in ("tables", "ids"))
                what = "row" if kind == ROWS else "candidate"
                keys = [(what, names[table], row_id) for table, row_id in zip(tables, ids, strict=True)]
                assert len(set(keys)) == len(keys) and found.keys().isdisjoint(keys)
                known = [_bytes_of(column) for name, column in sorted(columns.items()) if name not in left_out]
                found |= zip(keys, zip(*known, strict=True), strict=True)
    return found


def _bytes_of(column: Any) -> list[bytes]:
    """The bytes of each row of a column; without a Python call for each of some 100,000 rows."""
    array = np.ascontiguousarray(column)
    rows = array.reshape(len(array), -1).view(np.uint8)
    return rows.view(f"V{rows.shape[1]}")[:, 0].tolist() if rows.size else [b""] * len(array)


def save(servers: Sequence[ParameterServer], job: TrainingJob, uri: str, cut: str = "save-1") -> str:
    """A record of all servers."""
    parts = [save_part(server, uri, cut=cut) for server in servers]
    commit_record(
        uri, parts, b"{}", job=job, job_id="job-1", kind="periodic", step=1, generation=1, cut=cut,
        created_unix_seconds=1000.0,
    )  # fmt: skip
    return uri
