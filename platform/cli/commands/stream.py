"""`data publish` and `data land`: write a click log to a Kafka topic, and a topic to daily files."""

from __future__ import annotations

import shlex

import click

from elastrec.platform.cli.data_files import described_data, progress_bar, write_job
from elastrec.platform.cli.options import NotBlank, echo_json, output_option
from elastrec.platform.specs.text.some import counted

_brokers_option = click.option(
    "--brokers", required=True, metavar="HOST:PORT,...", help="Addresses of the Kafka cluster."
)
_settings_option = click.option(
    "--settings", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
    help="Properties of the Kafka client, name=value, such as security.protocol.",
)  # fmt: skip


@click.command()
@click.argument("source")
@click.argument("topic")
@_brokers_option
@click.option(
    "--partitions", "topic_partitions", type=click.IntRange(1, 10_000),
    help="Number of partitions with which the topic is created; an existing topic must have this number.",
)  # fmt: skip
@click.option(
    "--partition", "partitions", multiple=True, metavar="DATE", help="Send only this partition of SOURCE. Repeatable."
)
@click.option(
    "--description", "-d", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
    help="Job file or TrainingData in YAML; default: SOURCE itself, or SOURCE/job.yaml.",
)  # fmt: skip
@_settings_option
@output_option
def publish(
    source: str,
    topic: str,
    brokers: str,
    topic_partitions: int | None,
    partitions: tuple[str, ...],
    description: str | None,
    settings: str | None,
    output: str,
) -> None:
    """Send the rows of the log at SOURCE to the Kafka topic TOPIC, keyed by session, in order of time.

    All rows of a session go to one partition of the topic. Rows are checked before the first one is sent. If a log is
    sent twice, its rows are in the topic twice. Needs the extra elastrec[kafka].
    """
    from elastrec.platform.data.partitions import Partition
    from elastrec.platform.data.stream.broker import read_settings
    from elastrec.platform.data.stream.publishing import publish as make

    progress, advance = progress_bar("publishing")
    with progress:
        report = make(
            described_data(source, description),
            topic,
            servers=brokers,
            partitions=[Partition.parse(text) for text in partitions] or None,
            topic_partitions=topic_partitions or 0,
            settings=read_settings(settings) if settings else None,
            progress=advance,
        )
    if output == "json":
        echo_json(report.model_dump(mode="json"))
        return
    fewest, most = min(report.partition_rows), max(report.partition_rows)
    click.echo(
        f"{topic}: {report.rows:,} rows, {report.message_bytes:,} bytes before compression, "
        f"{len(report.partition_rows)} partitions with {fewest:,} to {most:,} rows"
    )
    if report.skipped_rows:
        click.echo(f"skipped: {report.skipped_rows:,} bad rows")


@click.command()
@click.argument("topic")
@click.argument("destination", type=NotBlank())
@_brokers_option
@click.option(
    "--description", "-d", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
    help="Job file or TrainingData in YAML; default: DESTINATION/job.yaml.",
)  # fmt: skip
@_settings_option
@output_option
def land(
    topic: str, destination: str, brokers: str, description: str | None, settings: str | None, output: str
) -> None:
    """Write the messages of the Kafka topic TOPIC to daily Parquet files under DESTINATION, each message exactly once.

    There is one file per partition of the topic and day, so that a session's rows are in one file. The next call
    continues where this one ended. Also writes DESTINATION/job.yaml. Needs the extra elastrec[kafka].
    """
    from elastrec.platform.data.stream.broker import read_settings
    from elastrec.platform.data.stream.landing import land as make

    report = make(
        described_data(destination, description),
        topic,
        destination,
        servers=brokers,
        settings=read_settings(settings) if settings else None,
    )
    job_file = write_job(destination, report.data) if report.record.rows else ""
    if output == "json":
        echo_json({**report.model_dump(mode="json"), "job_file": job_file})
        return
    for file in report.landed:
        click.echo(
            f"partition {file.partition}: {file.rows:,} rows of the messages {file.begin:,} to {file.end - 1:,}, "
            f"{file.bytes:,} bytes in {counted(len(file.days), 'day')}"
        )
    if not report.landed:
        click.echo(f"{topic}: nothing new")
    if report.record.skipped_messages:
        click.echo(f"skipped so far: {report.record.skipped_messages:,} bad messages")
    if job_file:
        click.echo(f"train on it: elastrec run {shlex.quote(job_file)}")
