"""`inspect`: the contents of a checkpoint record, down to one row."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
import msgspec
from rich.table import Table

from elastrec.platform.cli.options import NotBlank, echo_json, output_option, wide_console
from elastrec.platform.specs.errors import MISSING, FieldProblem, SpecError

if TYPE_CHECKING:
    from elastrec.checkpoints import Record
    from elastrec.checkpoints.inspection import RecordFacts, RowFacts

_ENCODINGS = ("integer", "hexadecimal", "string")
_SHOWN_NUMBERS = 8


@click.command()
@click.argument("checkpoint", type=NotBlank())
@click.option(
    "--job", "job_name", metavar="NAME", type=NotBlank(),
    help="Treat CHECKPOINT as a store, and show the newest record of this job.",
)  # fmt: skip
@click.option("--table", "-t", help="Show one row of this embedding table ...")
@click.option("--key", "-k", help="... with this key, written as in the data. The empty key is the missing category.")
@click.option(
    "--encoding", type=click.Choice(_ENCODINGS), help="Encoding of the key; default: as in the record's job file."
)
@output_option
def inspect(
    checkpoint: str, job_name: str | None, table: str | None, key: str | None, encoding: str | None, output: str
) -> None:
    """Show the contents of a checkpoint record.

    These are tables, rows, bytes, optimiser states, dense parameters and positions in the data. CHECKPOINT is the
    folder or URI of a record or, with --job, of a store.
    """
    from elastrec.checkpoints.inspection import find_row, record_facts

    if (table is None) != (key is None):
        name, other = ("--key", "--table") if key is None else ("--table", "--key")
        raise SpecError([FieldProblem(name, MISSING, f"a value, together with {other}")], "the command line")
    record = _record(checkpoint, job_name)
    if table is None or key is None:
        facts, positions = record_facts(record), _positions(record)
        if output == "json":
            echo_json(msgspec.to_builtins(facts) | {"positions": positions})
        else:
            _show_record(facts, positions)
        return
    row = find_row(record, table, _row_id(record, table, key, encoding))
    if output == "json":
        echo_json(msgspec.to_builtins(row) | {"key": key})
    else:
        _show_row(row, key)


def _record(checkpoint: str, job_name: str | None) -> Record:
    from elastrec.checkpoints import latest_record, open_record, open_store
    from elastrec.checkpoints.manifest import MANIFEST

    if job_name is None:
        if not open_store(checkpoint).exists(MANIFEST):
            problem = FieldProblem(
                "CHECKPOINT", repr(checkpoint), f"the folder or URI of a complete record, which has a {MANIFEST}",
                "for the newest record of a job in a store, add --job NAME",
            )  # fmt: skip
            raise SpecError([problem], "the command line")
        return open_record(checkpoint)
    record = latest_record(checkpoint, job_name)
    if record is None:
        store = open_store(checkpoint)
        names = ", ".join(name for name in store.folders() if store.folders(f"{name}/records"))
        raise SpecError(
            [FieldProblem("--job", repr(job_name), names or f"none: {store.uri} has no records")], "the store"
        )
    return record


def _positions(record: Record) -> dict[str, int]:
    """Positions in the data: shards that were handed out, and trained rows of shards that were not done."""
    from elastrec.platform.specs.splits import Positions

    try:
        streams = Positions.decode(record.positions()).streams.values()
    except msgspec.MsgspecError as error:
        raise SpecError([FieldProblem("positions", str(error), "shard states of a master")], record.uri) from None
    handed_out = sum(stream.cursor for stream in streams)
    shards = [shard for stream in streams for shard in stream.begun]
    return {
        "shards_handed_out": handed_out,
        "shards_begun": len(shards),
        "shards_done": handed_out - len(shards),
        "rows_of_begun_shards": sum(shard.offset for shard in shards),
    }


def _row_id(record: Record, table: str, key: str, encoding: str | None) -> int:
    """The id of the key."""
    import pyarrow as pa

    from elastrec.platform.data.features.steps import MISSING_ID
    from elastrec.platform.data.reading.ids import encode_ids

    summary = record.manifest.model.table(table)
    if summary is None:
        tables = ", ".join(known_table.name for known_table in record.manifest.model.tables)
        raise SpecError([FieldProblem("--table", repr(table), tables)], record.uri)
    if key == "":
        row_id = MISSING_ID
    else:
        chosen = encoding or _recorded_encoding(record, table, summary.features)
        ids, missing, wrong = encode_ids(pa.array([key], pa.string()), chosen, table)
        if wrong[0] or missing[0]:
            allowed = {"integer": "a 64-bit integer", "hexadecimal": "1 to 16 hexadecimal digits", "string": "any text"}
            raise SpecError([FieldProblem("--key", repr(key), allowed[chosen])], f"table {table}")
        row_id = int(ids[0])
    return row_id if summary.hash_size is None else row_id % summary.hash_size


def _recorded_encoding(record: Record, table: str, features: list[str]) -> str:
    recorded = msgspec.json.decode(record.manifest.attributes.get("encodings", "{}"), type=dict[str, str])
    encodings = sorted({recorded[feature] for feature in features if feature in recorded})
    if len(encodings) != 1:
        described = "not recorded" if not encodings else f"{' and '.join(encodings)}, by feature"
        problem = FieldProblem("--encoding", MISSING, ", ".join(_ENCODINGS), f"in this record it is {described}")
        raise SpecError([problem], f"table {table}")
    return encodings[0]


def _size(size_bytes: int) -> str:
    for unit, size in (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
        if size_bytes >= size:
            return f"{size_bytes / size:.1f}{unit}"
    return f"{size_bytes}"


def _moment(unix_seconds: float) -> str:
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _show_record(facts: RecordFacts, positions: dict[str, int]) -> None:
    click.echo(facts.uri)
    click.echo(f"  {facts.kind} record of job {facts.job_id}, made {_moment(facts.created_unix_seconds)}")
    if any(facts.interval):
        click.echo(f"  data from {facts.interval[0]} to {facts.interval[1]}")
    click.echo(f"  step {facts.step:,}, generation {facts.generation}")
    click.echo(
        f"  positions: {positions['shards_done']:,} shards done, {positions['shards_begun']:,} begun "
        f"({positions['rows_of_begun_shards']:,} of their rows trained)"
    )
    click.echo(
        f"  {facts.architecture}; {facts.rows:,} rows, {facts.dense_elements:,} dense elements, "
        f"{_size(facts.size_bytes)} in {facts.parts} parts, {facts.virtual_buckets} buckets\n"
    )
    console = wide_console()
    tables = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("TABLE", "ROWS", "BYTES", "DIMENSION", "OPTIMISER", "HASH SIZE", "FEATURES"):
        tables.add_column(column)
    for table in facts.tables:
        tables.add_row(
            table.name, f"{table.rows:,}", _size(table.size_bytes), str(table.dimension),
            " + ".join(segment.optimizer for segment in table.segments),
            "-" if table.hash_size is None else f"{table.hash_size:,}", ", ".join(table.features),
        )  # fmt: skip
    console.print(tables)
    dense = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("DENSE PARAMETER", "SHAPE", "ELEMENTS", "OPTIMISER"):
        dense.add_column(column)
    for parameter in facts.dense:
        dense.add_row(
            parameter.name, " x ".join(map(str, parameter.shape)), f"{parameter.elements:,}", str(facts.dense_optimizer)
        )
    click.echo()
    console.print(dense)


def _show_row(row: RowFacts, key: str) -> None:
    state = {
        "row": "a row",
        "candidate": "a candidate: seen, but not often enough to have a row",
        "absent": "absent: never trained, or evicted",
    }[row.found]
    click.echo(f"{row.table}[{key!r}]: {state}")
    click.echo(f"  id {row.id}, bucket {row.bucket}")
    if row.values:
        click.echo(f"  values ({len(row.values)}): {_numbers(row.values)}")
    for name, numbers in row.optimizer_state.items():
        click.echo(f"  {name}: {_numbers(numbers)}")
    if row.found != "absent":
        counted = "not recorded for rows" if row.sightings is None else f"{row.sightings} sightings"
        seen_at = row.last_seen_unix_seconds
        click.echo(f"  frequency: {counted}")
        click.echo(f"  last seen: {'not recorded (no evict_after)' if seen_at is None else _moment(seen_at)}")


def _numbers(values: list[float]) -> str:
    lines = [
        "  ".join(f"{value:+.6g}" for value in values[start : start + _SHOWN_NUMBERS])
        for start in range(0, len(values), _SHOWN_NUMBERS)
    ]
    return lines[0] if len(lines) == 1 else "\n    " + "\n    ".join(lines)
