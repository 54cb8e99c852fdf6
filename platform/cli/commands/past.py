"""`explain`, `report` and `ledger`: what a job has done, while it runs and after it has ended."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.table import Table

from elastrec.platform import jobs
from elastrec.platform.cli.completion import all_jobs
from elastrec.platform.cli.options import (
    NotBlank,
    OutputFile,
    echo_json,
    output_option,
    platform_to_look,
    wide_console,
    write_output,
)
from elastrec.platform.jobs.known import unknown
from elastrec.platform.jobs.watching.past import NothingLeftError
from elastrec.platform.specs.job import HistorySpec
from elastrec.platform.specs.text.some import counted

if TYPE_CHECKING:
    import pyarrow as pa

store_option = click.option(
    "--store", metavar="URI", type=NotBlank(), default=jobs.DEFAULT_STORE, show_default=True,
    help="Checkpoint store of a job that has ended, as in its job file.",
)  # fmt: skip
_SHOWN_LINES = 1000


@click.command()
@click.argument("job", shell_complete=all_jobs)
@store_option
@output_option
def explain(job: str, store: str, output: str) -> None:
    """Show what happened to a JOB, why, and where its time went.

    The parts add up to the wall time. Goodput is the share of the wall time in which rows were trained that are in the
    model.
    """
    from elastrec.platform.master.reporting.explanation import as_text

    platform = platform_to_look()
    with _known_to(platform, job, store):
        story = jobs.explanation(platform, job, store)
    if output == "json":
        shown = {name: value for name, value in msgspec.to_builtins(story).items() if name != "type"}
        for plain, own in zip(shown["own_plans"], story.own_plans, strict=True):
            del plain["plan_json"]
            plain["plan"] = msgspec.json.decode(own.plan_json)
        echo_json(shown)
    else:
        click.echo(as_text(story))


@click.command()
@click.argument("job", shell_complete=all_jobs)
@click.option(
    "--experiment",
    metavar="NAME",
    default=HistorySpec().experiment,
    show_default=True,
    help="MLflow experiment of the job, as in its job file.",
)
@click.option("--file", "to", type=OutputFile(), help="Write the report to this file instead of standard output.")
@store_option
def report(job: str, experiment: str, to: str | None, store: str) -> None:
    """Print the report of a JOB.

    The report describes what was trained, the result, where time and money went, and every decision and fault. It is a
    self-contained HTML page. After the job has ended, its MLflow run has it as the artifact `report.html`.
    """
    page = jobs.report(platform_to_look(), job, experiment, store)
    if to is None:
        click.echo(page)
        return
    write_output(to, page.encode(), "the report")
    click.echo(f"written: {to}")


@click.command()
@click.argument("job", shell_complete=all_jobs)
@click.option("--parquet", type=OutputFile(), help="Also write the whole ledger to this file.")
@click.option("--kind", type=click.Choice(["train", "evaluate"]), help="Show only shards of this kind.")
@store_option
@output_option
def ledger(job: str, parquet: str | None, kind: str | None, store: str, output: str) -> None:
    """Show every attempt at every shard of a JOB.

    The table shows which pod trained which rows when, and which rows were repeated. FROM and TO are positions in the
    order of the shard, which is the order of its rows or, if `shuffle_seed` is set, a shuffled order. KEPT is the
    number of rows of an attempt that are in the model; its other rows were discarded and trained again.
    """
    import pyarrow.compute as pc

    platform = platform_to_look()
    with _known_to(platform, job, store):
        table = jobs.ledger(platform, job, store)
    if kind:
        table = table.filter(pc.equal(table.column("kind").cast("string"), kind))
    if parquet:
        write_output(parquet, _parquet(table), "the ledger")
    if output == "json":
        lines = table.to_pylist()
        for line in lines:
            line["ended_at"] = line["ended_at"].isoformat() if line["ended_at"] else None
        echo_json({"job": job, "totals": _totals(table), "attempts": lines})
        return
    wide_console().print(_shown(table))
    if table.num_rows > _SHOWN_LINES:
        click.echo(f"... {table.num_rows - _SHOWN_LINES:,} more; --parquet FILE or --output json has them all")
    for name, facts in _totals(table).items():
        click.echo(
            f"{name}: {counted(facts['attempts'], 'attempt')} at {counted(facts['shards'], 'shard')}; "
            f"{facts['rows']:,} rows, {facts['repeated']:,} of them repeated; the model has seen {facts['kept']:,}"
        )
    if parquet:
        click.echo(f"written: {parquet}")


@contextmanager
def _known_to(platform: jobs.Platform, job: str, store: str) -> Iterator[None]:
    """If neither the cluster nor the store knows the job, the error names the known jobs."""
    try:
        yield
    except NothingLeftError as error:
        raise unknown(platform, job, store) from error


def _parquet(table: pa.Table) -> bytes:
    import pyarrow.parquet as pq

    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd")
    return file.getvalue()


def _totals(table: pa.Table) -> dict[str, dict[str, int]]:
    import pyarrow.compute as pc

    totals = {}
    for kind in ("train", "evaluate"):
        lines = table.filter(pc.equal(table.column("kind").cast("string"), kind))
        if not lines.num_rows:
            continue
        sums = {name: pc.sum(lines.column(name)).as_py() for name in ("from", "to", "repeated", "kept")}
        totals[kind] = {
            "attempts": lines.num_rows,
            "shards": lines.group_by(["epoch", "shard"]).aggregate([]).num_rows,
            "rows": sums["to"] - sums["from"],
            "repeated": sums["repeated"],
            "kept": sums["kept"],
        }
    return totals


def _shown(table: pa.Table) -> Table:
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("KIND", "EPOCH", "SHARD", "ROWS", "TRY", "POD", "FROM", "TO", "REPEATED", "KEPT", "OUTCOME", "ENDED"):
        shown.add_column(name)
    for line in table.slice(0, _SHOWN_LINES).to_pylist():
        shown.add_row(*(str(value) for value in _line(line)))
    return shown


def _line(line: dict[str, Any]) -> list[Any]:
    return [
        line["kind"],
        line["epoch"],
        line["shard"],
        f"{line['first_row']}-{line['first_row'] + line['rows'] - 1}",
        line["attempt"],
        line["pod"],
        line["from"],
        line["to"],
        line["repeated"],
        line["kept"],
        line["outcome"],
        line["ended_at"].strftime("%Y-%m-%d %H:%M:%S") if line["ended_at"] else "-",
    ]
