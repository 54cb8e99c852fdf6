"""Refuses paths that pods cannot reach: on a remote cluster, these are all paths on the caller's own machine.

Pods can reach URIs of other machines, and local paths below a folder that every node has at the same path
(`shared_folders` in the cluster's file).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from urllib.parse import unquote

from elastrec.platform.clusters.backends import backend_of
from elastrec.platform.jobs.surroundings import TRACKING_VARIABLE, WORK_VARIABLE, Platform
from elastrec.platform.specs.errors import FieldProblem, SpecError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.text.uris import masked

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_LOOPBACK = re.compile(r"(?:^|[/@=])(?:localhost|127(?:\.\d+){3}|\[?::1\]?)(?=[:/?#&]|$)", re.IGNORECASE)
_ALLOWED = (
    "a URI that every node reaches, such as s3://bucket/folder, or a path in shared_folders of the cluster's file"
)


def refuse_unreachable(platform: Platform, job: TrainingJob) -> None:
    """Compares a job, its paths made absolute, and its surroundings with what pods can reach.

    Raises:
        SpecError: the cluster is remote, and some paths are on this machine; names all of them.
    """
    if not backend_of(platform.cluster_config).is_remote:
        return
    shared = [Path(folder) for folder in platform.cluster_config.shared_folders]
    if problems := [*_paths(platform, job, shared), *_tracking(platform), *_code(job)]:
        raise SpecError(problems, "the job, compared with a cluster of other machines")


def _paths(platform: Platform, job: TrainingJob, shared: list[Path]) -> Iterator[FieldProblem]:
    spec, start_from = job.spec, job.spec.continual.start_from
    in_file = "name such a place in the job file"
    # Relative paths in the job file are relative to the work URI.
    store = "" if spec.checkpoint.store.startswith(f"{platform.work_uri}/") else spec.checkpoint.store
    for field, uri, remedy in (
        ("spec.data.path", spec.data.path, f"copy the data there and {in_file}"),
        ("spec.data.evaluation_path", spec.data.evaluation_path or "", f"copy the data there and {in_file}"),
        ("spec.checkpoint.store", store, in_file),
        ("spec.continual.start_from", "" if start_from in ("latest", "nothing") else start_from, in_file),
        ("work_uri", platform.work_uri, f"set {WORK_VARIABLE}, or extra.work_uri of the Airflow connection"),
    ):
        if uri and (why := _why_unreachable(uri, shared)):
            yield FieldProblem(field, f"{masked(uri)!r} ({why})", _ALLOWED, remedy)


def _tracking(platform: Platform) -> Iterator[FieldProblem]:
    uri = platform.tracking_uri
    scheme = _scheme(uri)
    why = "a file of this machine" if scheme in ("", "file", "sqlite") else _loopback(uri)
    if uri and why:
        remedy = f"set {TRACKING_VARIABLE}, or extra.tracking_uri of the Airflow connection"
        allowed = "the address of an MLflow server that every node reaches, such as http://mlflow.example.org:5000"
        yield FieldProblem("tracking_uri", f"{masked(uri)!r} ({why})", allowed, remedy)


def _code(job: TrainingJob) -> Iterator[FieldProblem]:
    spec = job.spec
    paths = {"spec.model.architecture": spec.model.architecture, "spec.data.transform": spec.data.transform or ""}
    asked = {field: path for field, path in paths.items() if ":" in path}
    installed = packages_distributions() if asked else {}
    for field, path in asked.items():
        if path.partition(":")[0].partition(".")[0] not in installed:
            yield FieldProblem(
                field,
                f"{path!r} (of no installed package, found by PYTHONPATH alone)",
                "a built-in one, or one of an installed package, which pods have in their image",
                "make it a package, install it here and in the image",
            )


def _why_unreachable(uri: str, shared: list[Path]) -> str:
    """Why pods cannot reach it; empty if they can."""
    scheme = _scheme(uri)
    if scheme not in ("", "file"):
        return _loopback(uri)
    path = Path(unquote(uri.removeprefix("file:").removeprefix("//")) if scheme else uri).expanduser().absolute()
    path = Path(os.path.normpath(path))
    return "" if any(path.is_relative_to(folder) for folder in shared) else "on this machine"


def _loopback(uri: str) -> str:
    return "each node would ask itself" if _LOOPBACK.search(unquote(uri)) else ""


def _scheme(uri: str) -> str:
    match = _SCHEME.match(uri)
    # The driver of a dialect, as in sqlite+pysqlite, does not matter here.
    return match[1].lower().partition("+")[0] if match else ""
