"""`data inspect` and `data cluster`: measure repeated features, and order a log by session."""

from __future__ import annotations

import io
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from elastrec.platform.cli.data_files import described_data, progress_bar, write_job
from elastrec.platform.cli.options import NotBlank, OutputFile, echo_json, output_option, wide_console, write_output
from elastrec.platform.specs.data import Partitioning, TrainingData
from elastrec.platform.specs.errors import FieldProblem, SpecError
from elastrec.platform.specs.text.some import counted

if TYPE_CHECKING:
    from elastrec.platform.data.clustering.clustering import Engine
    from elastrec.platform.data.clustering.inspection import DataFacts, Saving
    from elastrec.platform.data.deduplicating.stored_groups import Groups
    from elastrec.platform.data.features.inspection import FeatureSteps
    from elastrec.platform.data.partitions import Partition

_SAMPLE_ROWS, _AUTO_BATCH_ROWS = 200_000, 4_096
_description_option = click.option(
    "--description", "-d", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
    help="Job file or TrainingData in YAML; default: PATH itself, or PATH/job.yaml.",
)  # fmt: skip
_session_option = click.option("--session", metavar="COLUMN", help="Session column; default: as in the description.")
_partition_option = click.option(
    "--partition", metavar="DATE", help="Partition, for example 2026-01-31 or 2026-01-31T07."
)


@click.command()
@click.argument("path")
@_description_option
@_session_option
@_partition_option
@click.option("--rows", type=click.IntRange(min=1), default=200_000, show_default=True, help="Rows in the sample.")
@click.option(
    "--batch-size", type=click.IntRange(min=1), default=4_096, show_default=True, help="Batch size of the job."
)
@click.option(
    "--computed-pooling",
    metavar="FEATURE,...",
    help="Features that the model itself pools, such as attention of din or sequences of bst.",
)
@click.option("--picture", type=OutputFile(), help="Write a PNG picture to this file.")
@output_option
def inspect(
    path: str,
    description: str | None,
    session: str | None,
    partition: str | None,
    rows: int,
    batch_size: int,
    computed_pooling: str | None,
    picture: str | None,
    output: str,
) -> None:
    """Show the steps of each feature of the log at PATH, and what clustering and deduplication would save.

    Reads the first rows of the newest partition (or --partition). Nothing is changed. Repeats are only measured if the
    log has a session column.
    """
    from elastrec.platform.data.clustering.inspection import inspect_data
    from elastrec.platform.data.features.inspection import sample_steps
    from elastrec.platform.data.manifest import build_manifest
    from elastrec.platform.data.partitions import Partition, existing_partitions

    data = _with_session(described_data(path, description), session)
    chosen = None
    if partition is not None:
        chosen = [Partition.parse(partition)]
    elif data.partitioning is not Partitioning.NONE:
        chosen = existing_partitions(data)[-1:]
    manifest = build_manifest(data, chosen, try_rows=False)
    if data.session is None:
        _without_sessions(sample_steps(data, manifest, rows), picture, output)
        return
    facts = inspect_data(
        data,
        manifest,
        sample_rows=rows,
        batch_rows=batch_size,
        computed_pooling=frozenset(computed_pooling.split(",")) if computed_pooling else frozenset(),
    )
    if picture is not None:
        from elastrec.platform.history.inspection_picture import inspection_picture

        drawn = io.BytesIO()
        inspection_picture(facts).savefig(drawn, format="png")
        write_output(picture, drawn.getvalue(), "the picture")
    if output == "json":
        echo_json(_document(facts))
        return
    _show(facts)


@click.command()
@click.argument("source")
@click.argument("destination", type=NotBlank())
@_description_option
@_session_option
@click.option("--partition", "partitions", multiple=True, metavar="DATE", help="Write only this partition. Repeatable.")
@click.option(
    "--row-group-rows", type=int, default=16_384, show_default=True, help="Maximum number of rows in a row group."
)
@click.option(
    "--memory-mib", type=click.IntRange(min=1), default=1_024, show_default=True, help="Memory for decoded rows."
)
@click.option(
    "--engine", type=click.Choice(["local", "spark"]), default="local", show_default=True,
    help="The program that sorts; the files are the same. spark needs the extra elastrec[spark].",
)  # fmt: skip
@click.option(
    "--spark-master", default="", metavar="URL", help="Spark master; default: as configured in Spark's environment."
)
@click.option(
    "--deduplicate", metavar="auto|F,F;F",
    help="Store each distinct row of these features once: groups separated by ';', or auto for the groups of inspect.",
)  # fmt: skip
@output_option
def cluster(
    source: str,
    destination: str,
    description: str | None,
    session: str | None,
    partitions: tuple[str, ...],
    row_group_rows: int,
    memory_mib: int,
    engine: Engine,
    spark_master: str,
    deduplicate: str | None,
    output: str,
) -> None:
    """Write the Parquet log at SOURCE to DESTINATION, ordered by session and then by time.

    SOURCE is a folder with a job.yaml, or a job file. No session is split between row groups. Existing partitions are
    not written again; an interrupted partition leaves no files. Also writes DESTINATION/job.yaml.

    With --deduplicate, jobs read the same rows from fewer bytes and in less time; other Parquet readers see columns
    with other names.
    """
    from elastrec.platform.data.clustering.clustering import cluster as make
    from elastrec.platform.data.clustering.clustering import clustered_data
    from elastrec.platform.data.partitions import Partition

    data = _with_session(described_data(source, description), session)
    chosen = [Partition.parse(text) for text in partitions] or None
    groups = _groups(deduplicate, data, chosen)
    progress, advance = progress_bar("clustering")
    with progress:
        reports = make(
            data,
            destination,
            partitions=chosen,
            row_group_rows=row_group_rows,
            memory_bytes=memory_mib * 2**20,
            engine=engine,
            spark_master=spark_master,
            groups=groups,
            progress=advance,
        )
    job_file = write_job(destination, clustered_data(data, destination))
    if output == "json":
        echo_json({"partitions": [report.model_dump(mode="json") for report in reports], "job_file": job_file})
        return
    for report in reports:
        smaller = report.source_bytes / report.bytes
        click.echo(
            f"{report.partition or destination}: {counted(report.rows, 'row')}, {counted(report.sessions, 'session')}, "
            f"{report.samples_per_session:.1f} rows each; {report.bytes:,} bytes, {smaller:.2f} times smaller"
        )
        for group in report.deduplicated:
            click.echo(f"  each distinct row of {', '.join(group)} is stored once")
        if report.rows_without_session:
            click.echo(f"  {report.rows_without_session:,} rows have no session and are at the end")
    if job_file:
        click.echo(f"train on it: elastrec run {shlex.quote(job_file)}")


def _groups(text: str | None, data: TrainingData, partitions: list[Partition] | None) -> Groups:
    """The groups of `--deduplicate`; `auto` measures a sample of the first partition."""
    if text is None:
        return ()
    if text != "auto":
        return tuple(tuple(name.strip() for name in group.split(",")) for group in text.split(";"))
    from elastrec.platform.data.clustering.clustering import without_keys
    from elastrec.platform.data.clustering.inspection import inspect_data
    from elastrec.platform.data.clustering.sorting import ClusterKeys
    from elastrec.platform.data.features.plan import column_groups
    from elastrec.platform.data.manifest import build_manifest
    from elastrec.platform.data.partitions import existing_partitions

    if partitions is None and data.partitioning is not Partitioning.NONE:
        partitions = existing_partitions(data)
    manifest = build_manifest(data, partitions[:1] if partitions else None, try_rows=False)
    proposal = inspect_data(data, manifest, sample_rows=_SAMPLE_ROWS, batch_rows=_AUTO_BATCH_ROWS).proposal
    return without_keys(column_groups(data, proposal.groups), ClusterKeys(data.session or "", data.timestamp))


def _with_session(data: TrainingData, session: str | None) -> TrainingData:
    return data if session is None else data.model_copy(update={"session": session})


def _document(facts: DataFacts) -> dict[str, Any]:
    document = asdict(facts)
    document["samples_per_session"] = facts.samples_per_session
    for name in ("storage", "stored_once", "sent", "pooled"):
        document[name]["ratio"] = getattr(facts, name).ratio
    return document


def _without_sessions(steps: Sequence[FeatureSteps], picture: str | None, output: str) -> None:
    if picture is not None:
        problem = FieldProblem("--picture", repr(picture), "a log with a session column", "name it with --session")
        raise SpecError([problem], "the command line")
    if output == "json":
        echo_json({"steps": [asdict(each) for each in steps]})
        return
    _show_steps(steps)
    click.echo("repeats are not shown, because data.session is not set; set it, or use --session")


def _show(facts: DataFacts) -> None:
    click.echo(
        f"{counted(facts.rows, 'row')}, {counted(facts.sessions, 'session')}, "
        f"{facts.samples_per_session:.2f} rows per session"
        + (f", {facts.rows_without_session:,} rows without a session" if facts.rows_without_session else "")
    )
    table = Table(
        "feature", "mean length", "same as before", "factor", "in log order", "predicted", "group", "why", box=None
    )
    for factor, choice in zip(facts.features, facts.proposal.choices, strict=True):
        why = choice.why + (f"; prediction off: {factor.why}" if factor.why else "")
        table.add_row(
            factor.name,
            f"{factor.mean_length:.1f}",
            f"{100 * factor.same_share:.1f} %",
            f"{factor.measured:.2f}",
            f"{factor.unclustered:.2f}",
            f"{factor.predicted:.2f}",
            str(choice.group) if choice.group >= 0 else "-",
            why,
        )
    wide_console().print(table)
    _show_steps(facts.steps)
    click.echo(_saving("stored, clustered by session", facts.storage, "bytes"))
    click.echo(_saving("stored with --deduplicate, clustered as before", facts.stored_once, "bytes"))
    click.echo(_saving(f"sent to workers, batches of {facts.batch_rows:,}", facts.sent, "bytes"))
    click.echo(_saving("looked up and pooled", facts.pooled, "ids"))


def _show_steps(steps: Sequence[FeatureSteps]) -> None:
    table = Table("feature", "column", "missing", "distinct", "after steps", "steps run on", "steps", box=None)
    for each in steps:
        table.add_row(
            each.name,
            ", ".join(each.columns),
            "-" if each.missing is None else f"{100 * each.missing:.1f} %",
            "-" if each.distinct_before is None else f"{each.distinct_before:,}",
            f"{each.distinct:,}",
            counted(each.rows, "row"),
            ", ".join(each.steps) + (" (1)" if each.is_fitted else "") if each.steps else "none",
        )
    wide_console().print(table)
    if any(each.is_fitted for each in steps):
        click.echo("(1) fitted on these rows; a job fits on its training rows, or keeps the figures of its record")


def _saving(what: str, saving: Saving, unit: str) -> str:
    return f"{what}: {saving.before:,} {unit} become {saving.after:,}, {saving.ratio:.2f} times fewer"
