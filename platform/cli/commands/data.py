"""`data generate` and `data convert`: make click logs that jobs can read. Also the group of all `data` commands."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from elastrec.platform.cli.commands.session import cluster, inspect
from elastrec.platform.cli.commands.stream import land, publish
from elastrec.platform.cli.data_files import progress_bar, write_job
from elastrec.platform.cli.options import NotBlank, echo_json, output_option, parse_overrides
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import FieldProblem, SpecError
from elastrec.platform.specs.text.loading import parse_mapping, read_text, validate
from elastrec.platform.specs.text.some import counted

if TYPE_CHECKING:
    from elastrec.platform.data.convert import Layout


@click.group()
def data() -> None:
    """Generate, convert, inspect, cluster, publish and land click logs."""


@data.command()
@click.argument("path", type=NotBlank())
@click.option("--rows-per-day", type=int, default=100_000, show_default=True)
@click.option("--days", type=int, default=2, show_default=True, help="The last day is for evaluation.")
@click.option("--start", default="2026-01-01", show_default=True, metavar="DATE", help="First day.")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same bytes.")
@click.option("--format", "file_format", type=click.Choice(["parquet", "csv", "criteo_tsv"]), default="parquet")
@click.option("--dense", type=int, default=13, show_default=True, help="Number of dense features.")
@click.option("--sparse", type=int, default=26, show_default=True, help="Number of scalar sparse features.")
@click.option("--lists", type=int, help="Number of list features; default 1, with criteo_tsv 0.")
@click.option("--list-length", type=int, default=8, show_default=True, help="Mean ids of a list.")
@click.option("--session-length", type=float, default=4.0, show_default=True, help="Mean rows of a session.")
@click.option(
    "--best-auc",
    type=float,
    default=0.8,
    show_default=True,
    help="AUC of a model that knows the true click probabilities.",
)
@click.option(
    "--set", "overrides", multiple=True, metavar="NAME=VALUE",
    help="Any other property, for example --set zipf_exponent=1.2 or --set partitioning=hour. Repeatable.",
)  # fmt: skip
@output_option
def generate(
    path: str,
    rows_per_day: int,
    days: int,
    start: str,
    seed: int,
    file_format: str,
    dense: int,
    sparse: int,
    lists: int | None,
    list_length: int,
    session_length: float,
    best_auc: float,
    overrides: tuple[str, ...],
    output: str,
) -> None:
    """Make a click log with planted structure under PATH, and a job file PATH/job.yaml that trains on it.

    The labels are drawn from a known teacher model, so the best possible AUC is known. Ids follow Zipf's law over
    growing vocabularies. Users come in sessions, and their lists are constant during a session. The teacher drifts from
    day to day. A complete log that already exists is not changed.
    """
    from elastrec.platform.data.generating.generator import GenerateSpec, training_data_for
    from elastrec.platform.data.generating.generator import generate as make

    content: dict[str, Any] = {
        "path": path,
        "rows_per_day": rows_per_day,
        "days": days,
        "start": start,
        "seed": seed,
        "format": file_format,
        "dense": dense,
        "sparse": sparse,
        "lists": lists if lists is not None else int(file_format != "criteo_tsv"),
        "list_length": list_length,
        "session_length": session_length,
        "best_auc": best_auc,
        **parse_overrides(overrides),
    }
    spec = validate(GenerateSpec, content, "the command line")
    progress, advance = progress_bar("generating")
    with progress:
        report = make(spec, advance)
    job_file = write_job(path, training_data_for(spec))
    if output == "json":
        echo_json({**report.model_dump(mode="json"), "job_file": job_file})
        return
    for day in report.days:
        best = "-" if day.best_auc is None else f"{day.best_auc:.4f}"
        click.echo(
            f"{day.day}: {counted(day.rows, 'row')}, {counted(day.positives, 'click')}, best reachable AUC {best}"
        )
    if job_file:
        click.echo(f"train on it: elastrec run {shlex.quote(job_file)}")


@data.command()
@click.argument("source", type=NotBlank())
@click.argument("destination", type=NotBlank())
@click.option(
    "--description", "-d", "description", required=True, type=click.Path(exists=True, dir_okay=False),
    help="TrainingData in YAML (or a job file with spec.data) that describes how SOURCE is read.",
)  # fmt: skip
@click.option("--label-rule", metavar="RULE", help="Derive the label, for example 'rating>=4'.")
@click.option(
    "--by-time",
    is_flag=True,
    help="One partition per day of the timestamp column; a day all of whose rows are bad is refused, unless it is "
    "farther from all other days than these are from each other. With --fractions: split in order of time.",
)
@click.option(
    "--fractions",
    metavar="F,F,...",
    help="Consecutive days of these fractions of the rows, with the sum 1, e.g. 0.8,0.2.",
)
@click.option("--rows-per-day", type=int, help="Consecutive days with this number of rows.")
@click.option("--start", default="2026-01-01", show_default=True, metavar="DATE", help="First day, unless --by-time.")
@output_option
def convert(
    source: str,
    destination: str,
    description: str,
    label_rule: str | None,
    by_time: bool,
    fractions: str | None,
    rows_per_day: int | None,
    start: str,
    output: str,
) -> None:
    """Convert SOURCE (a file or folder of CSV, Criteo TSV or Parquet) to daily Parquet partitions under DESTINATION.

    Text may be compressed: the names of such files end with .gz, .bz2, .zst or .lz4.
    Also writes DESTINATION/job.yaml. A conversion that fails leaves no files. If the same conversion already exists, it
    is kept.
    """
    from elastrec.platform.data.convert import convert as make

    layout = _layout(by_time, fractions, rows_per_day, start)
    described = _description(description, source)
    progress, advance = progress_bar("converting")
    with progress:
        report = make(described, destination, layout=layout, label_rule=label_rule, progress=advance)
    job_file = write_job(destination, report.data)
    if output == "json":
        echo_json({**report.model_dump(mode="json"), "job_file": job_file})
        return
    for folder, rows in report.partitions.items():
        click.echo(f"{folder}: {counted(rows, 'row')}")
    if report.skipped_rows:
        click.echo(f"skipped: {counted(report.skipped_rows, 'bad row')}")
    if job_file:
        click.echo(f"train on it: elastrec run {shlex.quote(job_file)}")


def _layout(by_time: bool, fractions: str | None, rows_per_day: int | None, start: str) -> Layout:
    from elastrec.platform.data.convert import ByFractions, ByRows, ByTime

    named = {"--by-time": by_time, "--fractions": fractions, "--rows-per-day": rows_per_day is not None}
    if not any(named.values()) or (fractions and rows_per_day is not None):
        allowed = "--by-time, --fractions (with or without --by-time) or --rows-per-day"
        given = " with ".join(name for name, value in named.items() if value) or "no option"
        raise SpecError([FieldProblem("layout", given, allowed)], "the command line")
    if fractions:
        parts = fractions.split(",")
        return validate(ByFractions, {"fractions": parts, "by_time": by_time, "start": start}, "the command line")
    if rows_per_day is not None:
        return validate(ByRows, {"rows": rows_per_day, "start": start}, "the command line")
    return ByTime()


def _description(file: str, source: str) -> TrainingData:
    content: Any = parse_mapping(read_text(file), file)
    if content.get("kind") == "TrainingJob":
        spec = content.get("spec")
        content = spec.get("data") if isinstance(spec, dict) else spec
    if isinstance(content, dict):
        content = {**content, "path": source, "partitioning": content.get("partitioning", "none")}
        if content["partitioning"] == "none":
            # Only jobs need evaluation rows; a conversion makes them.
            content.setdefault("evaluation_path", source)
    return validate(TrainingData, content, file)


data.add_command(cluster)
data.add_command(inspect)
data.add_command(publish)
data.add_command(land)
