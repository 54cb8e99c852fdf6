"""Calls the command line in this process, with a home folder and a node agent of its own."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import structlog

from elastrec.platform.cli.app import main
from elastrec.platform.clusters.local import LocalCluster, start_agent, stop_agent
from elastrec.platform.specs.errors import SpecError
from elastrec.platform.specs.job import TrainingJob
from tests.bad_input.case import Case, Place, quiet_files

CORES = 4.0
MEMORY_BYTES = 8 * 2**30


@dataclass(frozen=True)
class Refusal:
    """What one call left behind: exit code, outputs, and paths that appeared or vanished below the folders."""

    exit_code: object
    output: str
    message: str
    changed: list[str]


class CheckHere(contextlib.nullcontext["CheckHere"]):
    """The same check as `python -m elastrec.trainers.check`, without four seconds for another process."""

    def __init__(self, job: TrainingJob) -> None:
        super().__init__(self)
        self._job = job

    def wait(self) -> None:
        from elastrec.trainers.check import check

        problems = check(self._job)
        if problems:
            raise SpecError(problems, "the job's model")


def _accepted(*arguments: object) -> None:
    raise SystemExit("accepted: a master would have been created")


@contextlib.contextmanager
def platform_at(home: Path) -> Iterator[LocalCluster]:
    """A home folder whose node agent offers four cores and 8 GiB; nothing is left of it."""
    cluster = start_agent(home / "agent", cores=CORES, memory_bytes=MEMORY_BYTES, limits="threads")
    try:
        yield cluster
    finally:
        cluster.close()
        stop_agent(home / "agent")


def refuse(case: Case, folder: Path, home: Path) -> Refusal:
    """Makes the wrong input and calls the command line with it."""
    place = Place(folder)
    place.write_job()
    arguments = case.prepare(place)
    if place.content:
        place.write_job()
    environment = {"ELASTREC_HOME": str(home), "MLFLOW_TRACKING_URI": f"sqlite:///{home}/mlflow.db"}
    output, message = io.StringIO(), io.StringIO()
    exit_code: object = None
    logging = structlog.get_config()
    with (
        mock.patch.dict(os.environ, environment | place.environment),
        mock.patch("elastrec.platform.jobs.starting.preparation.ModelCheck", CheckHere),
        mock.patch("elastrec.platform.jobs.launch", _accepted),
        mock.patch.object(sys, "path", [str(folder), *sys.path]),
        mock.patch.object(sys, "dont_write_bytecode", True),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(message),
        quiet_files(folder) as changed,
        quiet_files(home / "work") as made,
    ):
        importlib.invalidate_caches()
        os.environ.pop("ELASTREC_CLUSTER", None) if "ELASTREC_CLUSTER" not in place.environment else None
        try:
            main(arguments)
        except SystemExit as end:
            exit_code = end.code
        finally:
            structlog.configure(**logging)
    return Refusal(exit_code, output.getvalue(), message.getvalue(), changed + made)
