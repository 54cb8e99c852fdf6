"""The ledger of a job as a table: every attempt at every shard, its repeated rows, and its rows that are in the model.

Pure, except for the functions that store it next to the job's records, where it is available after the job.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from elastrec.checkpoints import Store, list_terms, open_store
from elastrec.platform.master.machine.shards import ShardQueue
from elastrec.platform.master.machine.state import JobState
from elastrec.platform.master.service.journal import Journal
from elastrec.platform.master.service.lives import BEFORE, OF_ANOTHER_JOB, added_rows, attempts_before, lives
from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.specs.row_ranges import shard_seed
from elastrec.platform.transport.messages.ledger import Attempt, StreamNow

RUNNING, UNFINISHED = "running", "unfinished"
SCHEMA = pa.schema(
    [
        ("kind", pa.dictionary(pa.int32(), pa.string())),
        ("epoch", pa.int64()),
        ("shard", pa.int64()),
        ("attempt", pa.int64()),
        ("generation", pa.int64()),
        ("pod", pa.dictionary(pa.int32(), pa.string())),
        ("outcome", pa.dictionary(pa.int32(), pa.string())),
        ("first_row", pa.int64()),
        ("rows", pa.int64()),
        ("from", pa.int64()),
        ("to", pa.int64()),
        ("repeated", pa.int64()),
        ("kept", pa.int64()),
        ("shuffle_seed", pa.int64()),
        ("began_seconds", pa.float64()),
        ("ended_seconds", pa.float64()),
        ("ended_at", pa.timestamp("ms", tz="UTC")),
    ]
)
"""Columns of the ledger.

`first_row`, `rows`: the shard in the manifest's numbering. `from`, `to`: what the attempt trained, as places in the
shard's order: that of its rows, or where `shuffle_seed` is set the shuffled one. `repeated`: rows among these that an
earlier attempt had trained. `kept`: rows among these that the model has seen from this attempt; the others were thrown
away by a rollback, or by the loss of an evaluation shard, and trained again. Seconds are on the job's clock.
"""
_WIRE = (
    "stream", "generation", "number", "attempt", "pod", "from", "to", "outcome", "began_seconds", "ended_seconds",
)  # fmt: skip
"""Columns of `_raw` in the order of an Attempt's fields, without the last one."""


def running_attempts(state: JobState) -> list[Attempt]:
    """Attempts that have not ended."""
    outcome = UNFINISHED if state.phase.is_final else RUNNING
    return [
        Attempt(
            queue.stream, state.phases.generation, number, lease.attempt, lease.pod, lease.begin, lease.offset, outcome,
            lease.granted, state.time,
        )
        for queue in state.queues
        for number, lease in queue.doing.items()
    ]  # fmt: skip


def streams_now(state: JobState) -> list[StreamNow]:
    """What counts at the moment."""
    return [stream_now(queue) for queue in state.queues]


def stream_now(queue: ShardQueue) -> StreamNow:
    return StreamNow(stream=queue.stream, kind=queue.kind, splits=queue.splits, positions=queue.positions())


def ledger_table(
    pages: Iterable[Sequence[Attempt]], streams: Sequence[StreamNow], earlier: Sequence[pa.RecordBatch] = ()
) -> pa.Table:
    """The ledger, in the order in which attempts ended; attempts that still run are to come last.

    Args:
        pages: lines; taken one page at a time, so that only columns of a long ledger are ever in memory.
        streams: what counts at the moment.
        earlier: lines of the masters before, where this one continues from a record of theirs.
    """
    batches = [*earlier, *(_raw(page) for page in pages if page)]
    raw = pa.Table.from_batches(batches) if batches else pa.Table.from_batches([], _raw([]).schema)
    raw = raw.unify_dictionaries().combine_chunks()
    numbers = {name: raw.column(name).to_numpy() for name in ("number", "from", "to")}
    size = raw.num_rows
    columns: dict[str, NDArray[np.int64]] = {
        name: np.zeros(size, np.int64)
        for name in ("epoch", "shard", "first_row", "rows", "repeated", "kept", "shuffle_seed")
    }
    names = np.asarray(raw.column("stream").cast(pa.string()).to_pylist(), dtype=object)
    kinds = np.empty(size, dtype=object)
    shuffled = np.zeros(size, np.bool_)
    for now in streams:
        of_A = np.flatnonzero(names == now.stream)
        if not len(of_A):
            continue
        splits = now.splits
        number_A, from_A, to_A = (numbers[name][of_A] for name in ("number", "from", "to"))
        kinds[of_A] = now.kind
        columns["epoch"][of_A], columns["shard"][of_A] = epoch_A, shard_A = np.divmod(number_A, splits.per_epoch)
        columns["first_row"][of_A] = shard_A * splits.split_rows
        columns["rows"][of_A] = rows_A = splits.lengths(number_A)
        counts_A = _rows_that_count(now, number_A, rows_A)
        before_A, behind_A = _neighbours(number_A, from_A, to_A)
        columns["repeated"][of_A] = np.maximum(0, np.minimum(to_A, before_A) - from_A)
        columns["kept"][of_A] = np.maximum(0, np.minimum(np.minimum(to_A, behind_A), counts_A) - from_A)
        if splits.shuffle:
            shuffled[of_A] = True
            columns["shuffle_seed"][of_A] = [
                shard_seed(splits.seed, epoch, shard)
                for epoch, shard in zip(epoch_A.tolist(), shard_A.tolist(), strict=True)
            ]
    raw = raw.append_column("kind", pa.array(kinds, pa.string()))
    for name, values in columns.items():
        mask = ~shuffled if name == "shuffle_seed" else None
        raw = raw.append_column(name, pa.array(values, mask=mask))
    return raw.select(SCHEMA.names).cast(SCHEMA)


def _raw(attempts: Sequence[Attempt]) -> pa.RecordBatch:
    def numbers(name: str) -> pa.Array:
        return pa.array([getattr(attempt, name) for attempt in attempts], pa.int64())

    def words(name: str) -> pa.Array:
        return pa.array([getattr(attempt, name) for attempt in attempts], pa.string()).dictionary_encode()

    def seconds(name: str) -> pa.Array:
        return pa.array([getattr(attempt, name) for attempt in attempts], pa.float64())

    # An attempt that runs has not been written down yet.
    ended = [round(attempt.unix_seconds * 1000) if attempt.unix_seconds else None for attempt in attempts]
    return pa.RecordBatch.from_pydict(
        {
            "stream": words("stream"),
            "number": numbers("number"),
            "attempt": numbers("attempt"),
            "generation": numbers("generation"),
            "pod": words("pod"),
            "outcome": words("outcome"),
            "from": numbers("row_begin"),
            "to": numbers("row_end"),
            "began_seconds": seconds("began"),
            "ended_seconds": seconds("ended"),
            "ended_at": pa.array(ended, pa.timestamp("ms", tz="UTC")),
        }
    )


def _rows_that_count(now: StreamNow, number_A: NDArray[np.int64], rows_A: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows of each attempt's split that count at present: all rows if it is done, none if it was not handed out."""
    counts_A = np.where(now.splits.handed_out(now.positions.cursor, number_A), rows_A, 0)
    offsets = {shard.number: shard.offset for shard in now.positions.begun}
    if offsets:
        for place_in_table in np.flatnonzero(np.isin(number_A, np.fromiter(offsets, np.int64))).tolist():
            counts_A[place_in_table] = offsets[int(number_A[place_in_table])]
    return counts_A


def _neighbours(
    number_A: NDArray[np.int64], from_A: NDArray[np.int64], to_A: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each attempt, the last row that earlier attempts at its shard reached, and the first row of later attempts.

    An attempt begins at the shard's last acknowledged row; rows beyond it that earlier attempts trained do not count.
    """
    before_A = np.zeros(len(number_A), np.int64)
    behind_A = np.full(len(number_A), np.iinfo(np.int64).max)
    order = np.argsort(number_A, kind="stable")
    sorted_A = number_A[order]
    same = np.flatnonzero(sorted_A[1:] == sorted_A[:-1])
    # Nearly all shards have one attempt, so a loop over the others is fast enough.
    for left in same.tolist():
        first, second = order[left], order[left + 1]
        before_A[second] = max(before_A[first], to_A[first])
    for left in reversed(same.tolist()):
        first, second = order[left], order[left + 1]
        behind_A[first] = min(behind_A[second], from_A[second])
    return before_A, behind_A


def ledger_key(job_name: str, job_id: str) -> str:
    """The key of a job's ledger in its checkpoint store."""
    return f"{job_name}/ledger/{job_id}.parquet"


def write_ledger(
    store: str, job_name: str, job_id: str, state: JobState, journal: Journal, earlier_terms: int = 0
) -> str:
    """Stores the ledger of a job that has ended next to its records; returns its URI.

    Lines of earlier masters of the same run come first, so that one ledger has all rows of the model. For a master that
    left no ledger, lines with the outcome `before record …` have the rows that it trained, and no details (see
    `lives`).

    Args:
        earlier_terms: terms up to this number belong to other runs.

    Raises:
        CheckpointError: the store refused.
        JournalError: the journal cannot be read.
    """

    def pages() -> Iterable[Sequence[Attempt]]:
        after = 0
        while page := journal.ledger(after):
            yield page
            after += len(page)
        yield running_attempts(state)

    opened, key = open_store(store), ledger_key(job_name, job_id)
    earlier = earlier_lines(opened, job_name, job_id, state, earlier_terms)
    table = ledger_table(pages(), streams_now(state), earlier.to_batches())
    table = table.replace_schema_metadata(_metadata(job_name, job_id, state))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    opened.put(key, sink.getvalue())
    return opened.child_uri(key)


def _metadata(job_name: str, job_id: str, state: JobState) -> dict[str, str]:
    facts: dict[str, Any] = {"job": job_name, "job_id": job_id, "phase": str(state.phase)}
    return {"elastrec": msgspec.json.encode(facts).decode()}


def earlier_lines(store: str | Store, job_name: str, job_id: str, state: JobState, earlier_terms: int = 0) -> pa.Table:
    """Lines of the lives before this one, in their order; of one that left none, what is known from positions.

    They stay the same while this life goes on; of `state` only what does not change during a life is read.

    Args:
        earlier_terms: up to this one, terms are of other runs.

    Returns:
        As `attempts_of` reads it; empty where this life does not continue from a record.

    Raises:
        CheckpointError: the store could not be asked, or the ledger there is damaged.
    """
    if not state.is_resumed and state.plan.start_positions is None:
        return pa.Table.from_batches([_raw([])])
    store = open_store(store)
    key = ledger_key(job_name, job_id)
    now = state.training
    left = _left_lines(_read(store, key), now) if store.exists(key) else None
    of_job = lives(list_terms(store, job_name, job_id, after=earlier_terms), state.plan.holder)
    spans = added_rows(now.splits, [life.begin for life in of_job])
    start = state.plan.start_record.rpartition("/")[2]
    batches = [_raw(attempts_before(now.stream, spans[0], OF_ANOTHER_JOB, start))]
    for span_S2, (life, following) in zip(spans[1:], itertools.pairwise(of_job), strict=True):
        own = _of_generations(left, life.generation, following.generation) if left is not None else None
        if own is not None and own.num_rows:
            batches += own.to_batches()
        else:
            batches.append(_raw(attempts_before(now.stream, span_S2, life.generation, following.base)))
    return pa.Table.from_batches(batches)


def attempts_of(lines: pa.Table) -> list[Attempt]:
    """Some of the `earlier_lines` in the form of messages."""
    columns = [lines.column(name).to_pylist() for name in _WIRE]
    ended = [moment.timestamp() if moment is not None else 0.0 for moment in lines.column("ended_at").to_pylist()]
    return [Attempt(*values) for values in zip(*columns, ended, strict=True)]


def _left_lines(table: pa.Table, now: ShardQueue) -> pa.Table:
    """Lines of a ledger that an earlier master has left, as `_raw` makes them."""
    # What was evaluated begins anew with each life; lines that follow from positions are made anew.
    is_training = pc.equal(table.column("kind").cast(pa.string()), now.kind)
    is_derived = pc.starts_with(table.column("outcome").cast(pa.string()), BEFORE)
    table = table.filter(pc.and_(is_training, pc.invert(is_derived)))
    number = pc.add(pc.multiply(table.column("epoch"), now.splits.per_epoch), table.column("shard"))
    raw = _raw([]).schema
    stream = pa.repeat(now.stream, table.num_rows)
    return table.append_column("number", number).append_column("stream", stream).select(raw.names).cast(raw)


def _of_generations(table: pa.Table, first: int, end: int) -> pa.Table:
    generation = table.column("generation")
    return table.filter(pc.and_(pc.greater_equal(generation, first), pc.less(generation, end)))


def _read(store: Store, key: str) -> pa.Table:
    try:
        return pq.read_table(pa.BufferReader(store.get(key))).cast(SCHEMA)
    except pa.ArrowInvalid as error:
        raise CheckpointError(f"{store.child_uri(key)}: the ledger cannot be read: {error}") from error


def read_ledger(store: str | Store, job_id: str) -> pa.Table | None:
    """The ledger of a job that has ended, for any job name; None if the store has none.

    Raises:
        CheckpointError: the store could not be asked, or the file is damaged.
    """
    opened = open_store(store)
    for name in opened.folders():
        key = ledger_key(name, job_id)
        if opened.exists(key):
            return _read(opened, key)
    return None
