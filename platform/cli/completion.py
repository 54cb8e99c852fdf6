"""Names of jobs and pods for shell completion. It starts no process, and returns no names if the cluster does not
answer."""

from __future__ import annotations

from collections.abc import Callable

import click

from elastrec.platform.jobs.known import jobs_of_cluster, jobs_of_store
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.specs.errors import ElastrecError


def _complete(names: Callable[[Platform], list[str]], incomplete: str) -> list[str]:
    try:
        return [name for name in names(Platform.for_looking()) if name.startswith(incomplete)]
    except (ElastrecError, OSError):
        # A message would appear in the middle of the command line.
        return []


def running_jobs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Jobs of the cluster."""
    return _complete(jobs_of_cluster, incomplete)


def all_jobs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Jobs of the cluster, and jobs with files in the checkpoint store that `--store` names."""
    store = context.params.get("store")
    return _complete(
        lambda platform: sorted({*jobs_of_cluster(platform), *jobs_of_store(platform, *([store] if store else []))}),
        incomplete,
    )


def running_pods(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Pods of the cluster, and jobs, whose names are used for their masters."""
    return _complete(
        lambda platform: sorted({*jobs_of_cluster(platform), *(pod.name for pod in platform.launcher.pods())}),
        incomplete,
    )
