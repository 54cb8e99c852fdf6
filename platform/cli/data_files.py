"""Shared by the `data` commands: reading and writing the job file of a log, and the progress bar."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import FieldProblem, SpecError
from elastrec.platform.specs.text.loading import parse_mapping, read_text, validate

JOB_FILE = "job.yaml"
_LONGEST_NAME = 30


def described_data(path: str, description: str | None) -> TrainingData:
    """The data section for PATH, which is a job file or a folder with a job file, unless `description` names one.

    Raises:
        SpecError: there is no job file, or it is wrong.
    """
    if description is None:
        beside = Path(path) if Path(path).is_file() else Path(path) / JOB_FILE
        if not beside.is_file():
            problem = FieldProblem(
                "PATH",
                repr(path),
                f"a job file or a folder that holds {JOB_FILE}",
                "or say with --description how to read",
            )
            raise SpecError([problem], "the command line")
        return _data_of(str(beside), {})
    return _data_of(description, {} if Path(path).is_file() else {"path": path})


def _data_of(file: str, other: dict[str, Any]) -> TrainingData:
    content: Any = parse_mapping(read_text(file), file)
    if content.get("kind") == "TrainingJob":
        spec = content.get("spec")
        content = spec.get("data") if isinstance(spec, dict) else spec
    if isinstance(content, dict):
        content = {**content, **other}
    return validate(TrainingData, content, file)


def progress_bar(words: str) -> tuple[Progress, Callable[[int, int], None]]:
    """A progress bar on standard error (if that is a terminal), and the function that updates it: (rows done, rows in
    all)."""
    progress = Progress(
        TextColumn(words), BarColumn(), MofNCompleteColumn(), TextColumn("rows"), TimeRemainingColumn(),
        console=Console(file=sys.stderr), disable=not sys.stderr.isatty(),
    )  # fmt: skip
    task = progress.add_task(words, total=None)

    def advance(done: int, total: int) -> None:
        progress.update(task, completed=done, total=total)

    return progress, advance


def write_job(path: str, described: TrainingData) -> str:
    """Writes a job file next to local data; returns its path, or an empty string for remote data."""
    from elastrec.platform.data.files import write_bytes

    if "://" in path:
        return ""
    folder = Path(path).absolute()
    absolute = described.model_copy(update={"path": str(folder)})
    job = {
        "apiVersion": "elastrec.io/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": _job_name(folder.name)},
        "spec": {
            "model": {"architecture": "wide_and_deep", "embedding_dimension": 16, "options": {}},
            "data": absolute.model_dump(mode="json", exclude_none=True, exclude_defaults=True),
            "resources": {
                "worker": {"count": 2, "cores": 0.6, "memory": "2Gi"},
                "parameter_server": {"count": 2, "cores": 0.25, "memory": "1Gi"},
                "evaluator": {"cores": 1.0, "memory": "3Gi"},
            },
        },
    }
    file = folder / JOB_FILE
    if not file.exists():
        # A part of a file would be kept by the next call.
        write_bytes(str(file), yaml.safe_dump(job, sort_keys=False).encode())
    return str(file)


def _job_name(folder: str) -> str:
    """A name that a job may have: `Größe 1` becomes `grosse-1`, a folder without Latin letters and digits `clicks`."""
    plain = unicodedata.normalize("NFKD", folder.casefold())
    letters = "".join(c for c in plain if not unicodedata.combining(c))
    return re.sub("[^a-z0-9]+", "-", letters)[:_LONGEST_NAME].strip("-") or "clicks"
