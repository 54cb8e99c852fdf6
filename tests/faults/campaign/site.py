"""The surroundings of a campaign: a home folder with a node agent, data, a user's model, and validated jobs."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from elastrec.platform import jobs
from elastrec.platform.clusters.local import start_agent, stop_agent
from elastrec.platform.clusters.local.client import LocalCluster
from elastrec.platform.data.generating.generator import GenerateReport
from elastrec.platform.jobs.types import Prepared
from elastrec.platform.specs import environment
from tests.faults.campaign.injury import AGENT_CORES
from tests.faults.campaign.job import (
    CHANGING_SECONDS,
    MODEL_MODULE,
    TRAINING_SECONDS,
    campaign_job,
    install_model,
    make_data,
)
from tests.faults.campaign.plan import Run, Shape
from tests.processes import processes_of, wait_for


@dataclass
class Site:
    """A home folder with a node agent, data, and a prepared job per shape."""

    home: Path
    data: GenerateReport
    platform: jobs.Platform
    cluster: LocalCluster
    prepared: dict[tuple[Shape, int, int, bool], Prepared] = field(default_factory=dict)

    def prepare(self, run: Run) -> Prepared:
        """The job of a run, checked once and then given a new identity for every one; its steps pause."""
        self._pausing.touch()
        kind = run.shape, run.deltas, run.memory_bytes, bool(run.plans)
        if kind not in self.prepared:
            seconds = CHANGING_SECONDS if run.plans else TRAINING_SECONDS
            job = campaign_job(run.shape, self.data, run.deltas, run.memory_bytes, seconds, str(self._pausing))
            self.prepared[kind] = jobs.prepare(self.platform, job, jobs.job_id_for(job.metadata.name, "prepared"))
        prepared = self.prepared[kind]
        stem = prepared.job_id.rpartition("-")[0]
        return msgspec.structs.replace(prepared, job_id=jobs.job_id_for(stem, uuid.uuid4().hex))

    def hurry(self) -> None:
        """Steps do not pause any more, in this run."""
        self._pausing.unlink(missing_ok=True)

    @property
    def _pausing(self) -> Path:
        return self.home / "steps pause"

    @property
    def store(self) -> Path:
        return self.home / "work" / "checkpoints"


@contextlib.contextmanager
def site_at(home: Path) -> Iterator[Site]:
    """A node agent in a home folder, stopped at the end: nothing may be left of it."""
    if home.exists():
        # Of a campaign that was interrupted: its jobs cannot be taken up again.
        stop_agent(home / "agent")
        shutil.rmtree(home)
    home.mkdir(parents=True)
    install_model(home / "models")
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "ELASTREC_HOME", environment.STREAMS)}
    path = [str(home / "models"), *filter(None, [before["PYTHONPATH"]])]
    # A cut drops what arrives over TCP, as between two machines.
    changes = {"PYTHONPATH": os.pathsep.join(path), "ELASTREC_HOME": str(home), environment.STREAMS: "tcp"}
    os.environ.update(changes)
    try:
        data = make_data(home / "data")
        cluster = start_agent(home / "agent", cores=AGENT_CORES)
        try:
            yield Site(home, data, jobs.Platform.connect(cluster.config, "", str(home / "work")), cluster)
        finally:
            cluster.close()
            stop_agent(home / "agent")
        wait_for(lambda: not processes_of(home), 60, f"no process is left: {processes_of(home)}")
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


@contextlib.contextmanager
def users_code(folder: Path) -> Iterator[None]:
    """Makes the model's module known to this process, as PYTHONPATH does to the pods."""
    before = sys.path[:]
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        # A loaded model brings its code along, from a folder that is gone when the next one is exported.
        sys.path[:] = before
        sys.modules.pop(MODEL_MODULE, None)
