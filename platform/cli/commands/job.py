"""`validate`, `render` and `schema`: everything about a job file that starts nothing."""

from __future__ import annotations

from typing import Any

import click
import yaml

from elastrec.platform.cli.options import (
    echo_json,
    job_options,
    output_option,
    parse_interval,
    parse_overrides,
    platform_to_look,
)
from elastrec.platform.specs.text.crd import custom_resource_definition, job_json_schema
from elastrec.platform.specs.text.loading import dump_job, load_job


class _ReadableDumper(yaml.SafeDumper):
    """YAML that shows text of several lines, such as a pod's files, as it is."""


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_ReadableDumper.add_representer(str, _block)


@click.command()
@output_option
@click.option("--data/--no-data", default=False, help="Also check the data, the model and the cluster, as `run` does.")
@job_options
def validate(
    file: str,
    overrides: tuple[str, ...],
    since: str | None,
    until: str | None,
    evaluate_until: str | None,
    data: bool,
    output: str,
) -> None:
    """Check a job file; every problem is shown at once.

    Without --data only the file itself is read.
    """
    job = load_job(file, parse_overrides(overrides))
    interval = parse_interval(since, until, evaluate_until)
    facts: dict[str, Any] = {"file": file, "valid": True, "name": job.metadata.name}
    if data:
        from elastrec.platform.jobs import job_id_for, prepare

        prepared = prepare(platform_to_look(), job, job_id_for(job.metadata.name, "validate"), interval)
        facts |= {
            "training_rows": prepared.training_rows,
            "evaluation_rows": prepared.evaluation_rows,
            "continues_from": prepared.start_record or None,
            "begins": prepared.start_note or None,
        }
        if output == "text":
            for text in filter(None, (prepared.adaptation, prepared.deduplication)):
                click.echo(text)
    if output == "json":
        echo_json(facts)
        return
    click.echo(f"{file}: valid")
    if data:
        click.echo(f"  training rows: {facts['training_rows']}")
        click.echo(f"  evaluation rows: {facts['evaluation_rows']}")
        click.echo(f"  continues from: {facts['continues_from'] or 'nothing (no checkpoint)'}")
        if prepared.start_note:
            click.echo(f"  {prepared.start_note}")


@click.command()
@output_option
@click.option("--full", is_flag=True, help="Also print the job file with every default written out.")
@job_options
def render(
    file: str,
    overrides: tuple[str, ...],
    since: str | None,
    until: str | None,
    evaluate_until: str | None,
    full: bool,
    output: str,
) -> None:
    """Dry run: print exactly the pods that `run` would create, secrets masked."""
    from elastrec.platform.jobs import job_id_for, launch_request, prepare, warm_start
    from elastrec.platform.jobs.identity import new_job_secret
    from elastrec.platform.master.pods.launch import master_pod, member_pod
    from elastrec.platform.specs.metrics import Role

    job = load_job(file, parse_overrides(overrides))
    interval = parse_interval(since, until, evaluate_until)
    platform = platform_to_look()
    prepared = prepare(platform, job, job_id_for(job.metadata.name, "render"), interval)
    allocation = warm_start(platform, prepared)
    request = launch_request(prepared, allocation)
    secret = new_job_secret(platform, prepared.job_id)
    token, tls = secret.token, secret.tls
    address = f"{{address of {prepared.job_id}-master}}"
    pods = [master_pod(request, platform.cluster_config, token, tls)]
    counts = {Role.PARAMETER_SERVER: allocation.parameter_servers, Role.WORKER: allocation.workers}
    for role, count in counts.items():
        pods += [member_pod(request, role, address, index, token, tls) for index in range(count)]
    requests = [platform.launcher.dry_run(pod) for pod in pods]
    if output == "json":
        echo_json(requests)
        return
    if full:
        click.echo(dump_job(request.training_job))
    for text in (prepared.adaptation, prepared.deduplication):
        for line in text.splitlines():
            click.echo(f"# {line}")
    click.echo(yaml.dump_all(requests, Dumper=_ReadableDumper, sort_keys=False).rstrip())


@click.command()
@click.option("--crd", is_flag=True, help="The Kubernetes CustomResourceDefinition instead of the JSON schema.")
@output_option
def schema(crd: bool, output: str) -> None:
    """Print the JSON schema of a job file, or its Kubernetes CRD."""
    content = custom_resource_definition() if crd else job_json_schema()
    if output == "json":
        echo_json(content)
    else:
        click.echo(yaml.safe_dump(content, sort_keys=False).rstrip())
