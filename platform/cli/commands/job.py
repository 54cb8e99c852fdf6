"""`validate`, `render` and `schema`: commands for job files that start no pod."""

from __future__ import annotations

import json
from typing import Any

import click
import yaml

from elastrec.platform.cli.options import (
    Days,
    echo_json,
    job_options,
    output_option,
    parse_interval,
    parse_overrides,
    platform_to_look,
)
from elastrec.platform.specs.text.crd import custom_resource_definition, job_json_schema
from elastrec.platform.specs.text.loading import dump_job, job_from_json, load_job
from elastrec.platform.specs.text.uris import masked


class _ReadableDumper(yaml.SafeDumper):
    """YAML in which text with several lines, such as a pod's files, is written as a block."""


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
    days: Days,
    data: bool,
    output: str,
) -> None:
    """Check a job file, and show all problems.

    Without --data, only the file itself is checked, not the data, the model and the cluster.
    """
    job = load_job(file, parse_overrides(overrides))
    interval = parse_interval(days)
    facts: dict[str, Any] = {"file": file, "valid": True, "name": job.metadata.name, "data_checked": data}
    tables: tuple[str, ...] = ()
    if data:
        from elastrec.platform.jobs import job_id_for, prepare
        from elastrec.platform.master.machine.plan import training_splits

        prepared = prepare(platform_to_look(), job, job_id_for(job.metadata.name, "validate"), interval)
        job, tables = job_from_json(prepared.job_json), prepared.tables
        shards = training_splits(job.spec.training, prepared.training_rows).per_epoch
        facts |= {
            "training_rows": prepared.training_rows,
            "training_shards": shards,
            "evaluation_rows": prepared.evaluation_rows,
            "continues_from": prepared.start_record or None,
            "begins": prepared.start_note or None,
            "untrained": prepared.untrained or None,
        }
    facts["steps"] = {name: [step.summary for step in steps] for name, steps in job.spec.data.features.items()}
    if output == "json":
        echo_json(facts)
        return
    for table in tables:
        click.echo(table)
    click.echo(f"{file}: valid")
    for name, steps in facts["steps"].items():
        click.echo(f"  steps of {name}: {', '.join(steps)}")
    if not data:
        click.echo("  not checked: data, model and cluster; --data checks them as `run` does")
        return
    click.echo(f"  training rows: {facts['training_rows']}")
    click.echo(f"  evaluation rows: {facts['evaluation_rows']}")
    click.echo(f"  continues from: {facts['continues_from'] or 'nothing (no checkpoint)'}")
    if facts["begins"]:
        click.echo(f"  {facts['begins']}")
    if facts["untrained"]:
        click.echo(f"  {facts['untrained']}")
    workers = job.spec.resources.worker.count
    if shards < workers:
        click.echo(
            f"  {shards} shards for {workers} workers: {workers - shards} of them have nothing to read; request fewer "
            "(spec.resources.worker.count), or make smaller shards (spec.training.batches_per_shard)"
        )


@click.command()
@output_option
@click.option("--full", is_flag=True, help="Also print the job file with all defaults.")
@job_options
def render(
    file: str,
    overrides: tuple[str, ...],
    days: Days,
    full: bool,
    output: str,
) -> None:
    """Print exactly the pods that `run` would create (dry run), with masked secrets."""
    from elastrec.platform.clusters.backends import backend_of
    from elastrec.platform.jobs import job_id_for, launch_request, named_fields, prepare, warm_start
    from elastrec.platform.jobs.identity import new_job_secret
    from elastrec.platform.master.pods.launch import master_pod, member_pod
    from elastrec.platform.specs.metrics import Role

    changes = parse_overrides(overrides)
    job = load_job(file, changes)
    interval = parse_interval(days)
    platform = platform_to_look()
    prepared = prepare(platform, job, job_id_for(job.metadata.name, "render"), interval)
    allocation = warm_start(platform, prepared, named_fields(changes))
    request = launch_request(prepared, allocation)
    secret = new_job_secret(platform, prepared.job_id)
    token, tls = secret.token, secret.tls
    address = f"{{address of {prepared.job_id}-master}}"
    pods = [master_pod(request, platform.cluster_config, token, tls)]
    counts = {Role.PARAMETER_SERVER: allocation.parameter_servers, Role.WORKER: allocation.workers}
    for role, count in counts.items():
        pods += [member_pod(request, role, address, index, token, tls) for index in range(count)]
    backend = backend_of(platform.cluster_config)
    requests = [platform.launcher.dry_run(backend.as_created(pod)) for pod in pods]
    # A backend hides only what is a secret of the pod; URIs in files and variables may hold passwords, too.
    requests = json.loads(masked(json.dumps(requests)))
    if output == "json":
        echo_json(requests)
        return
    if full:
        click.echo(masked(dump_job(request.training_job)))
    for line in "\n".join(prepared.tables).splitlines():
        click.echo(f"# {line}")
    click.echo(yaml.dump_all(requests, Dumper=_ReadableDumper, sort_keys=False).rstrip())


@click.command()
@click.option("--crd", is_flag=True, help="Print the Kubernetes CustomResourceDefinition instead of the JSON schema.")
@output_option
def schema(crd: bool, output: str) -> None:
    """Print the JSON schema of a job file, or its Kubernetes CRD."""
    content = custom_resource_definition() if crd else job_json_schema()
    if output == "json":
        echo_json(content)
    else:
        click.echo(yaml.safe_dump(content, sort_keys=False).rstrip())
