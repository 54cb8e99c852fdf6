"""A job of some seconds on its own node agent, whose surroundings can fail during the job."""

from __future__ import annotations

import json
import math
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psutil

from elastrec.checkpoints import open_record
from elastrec.platform import jobs
from elastrec.platform.clusters.local import LocalCluster, find_agent, start_agent, stop_agent
from elastrec.platform.clusters.pods import PodStatus
from elastrec.platform.data.generating.generator import GenerateSpec, generate, training_data_for
from elastrec.platform.master.pods.launch import master_pod, pod_name
from elastrec.platform.master.reporting.explanation import as_text
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Phase, Role, TrainingMetrics
from elastrec.platform.specs.text.loading import job_from_json
from elastrec.platform.transport import new_token
from elastrec.platform.transport.messages.ledger import Explanation
from tests.checkpoints.verifying import verify
from tests.processes import wait_for

T = TypeVar("T")
ROWS = 40_000
BATCH_ROWS, SHARD_BATCHES = 256, 5
SHARDS = math.ceil(ROWS / (BATCH_ROWS * SHARD_BATCHES))
CORES, MEMORY_BYTES = 8.0, 16 * 2**30
_PAUSE_SECONDS = 0.05
_LOOK_SECONDS = 0.2
_MODEL = f"""
import time

from elastrec.trainers.models.dlrm import Dlrm


class Slow(Dlrm):
    def forward(self, dense_features, sparse_features):
        if self.training:
            time.sleep({_PAUSE_SECONDS})
        return super().forward(dense_features, sparse_features)
"""


def write_model(folder: Path) -> None:
    """A module for the PYTHONPATH of a node agent: the model of `job_content`."""
    folder.mkdir(parents=True)
    (folder / "slow_model.py").write_text(_MODEL)


def small_job(data: Path, store: Path) -> TrainingJob:
    """One worker and one server: a job whose result hardly depends on chance."""
    report = generate(GenerateSpec(path=str(data), days=2, rows_per_day=ROWS, dense=4, sparse=6, lists=0, seed=3))
    content = {
        "apiVersion": "elastrec.io/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "surroundings"},
        "spec": {
            "model": {"architecture": "slow_model:Slow", "embedding_dimension": 8, "options": {}},
            "data": json.loads(training_data_for(report.spec).model_dump_json(exclude_none=True)),
            "training": {"batch_size": BATCH_ROWS, "batches_per_shard": SHARD_BATCHES, "seed": 1},
            "resources": {
                "master": {"cores": 1, "memory": "512Mi"},
                "worker": {"count": 1, "cores": 2, "memory": "2Gi"},
                "parameter_server": {"count": 1, "cores": 1, "memory": "1Gi"},
                "evaluator": {"cores": 2, "memory": "3Gi"},
            },
            "checkpoint": {"store": str(store), "interval": "2s", "keep": 2},
            "continual": {"start_from": "nothing"},
            "faults": {"heartbeat_interval": "250ms"},
        },
    }
    return job_from_json(json.dumps(content))


@dataclass
class Site:
    """A node agent, and the settings for launching its jobs.

    Attributes:
        agent: folder of the agent's state; it runs while the context is open.
    """

    agent: Path
    work: Path
    platform: jobs.Platform = field(init=False)

    def __enter__(self) -> Site:
        self.start_agent()
        self.connect()
        return self

    def __exit__(self, *error: object) -> None:
        stop_agent(self.agent)
        left = self.processes()
        assert not left, f"processes of {self.agent} are left: {left}"

    def connect(self) -> None:
        """To the agent that runs now."""
        self.platform = jobs.Platform.connect(self.cluster().config, "", str(self.work))

    def cluster(self) -> LocalCluster:
        """The agent that runs now."""
        found = find_agent(self.agent)
        assert found is not None
        return found

    def kill_agent(self) -> psutil.Process:
        """As `kill -9` does; its pods run on."""
        victim = psutil.Process(self.cluster().agent().pid)
        victim.kill()
        wait_for(lambda: not victim.is_running() or victim.status() == psutil.STATUS_ZOMBIE, 240, "the agent's end")
        return victim

    def start_agent(self) -> None:
        """Starts it where it ran before."""
        start_agent(self.agent, cores=CORES, memory_bytes=MEMORY_BYTES)

    def processes(self, pod: str = "") -> list[psutil.Process]:
        """The Python processes of pods whose name begins so."""
        found = []
        for process in psutil.process_iter():
            try:
                variables, command = process.environ(), process.cmdline()
            except psutil.Error:
                continue
            of_pod = str(self.agent) in variables.get("ELASTREC_WORK", "")
            is_ours = any(part.startswith("elastrec.") for part in command)
            if of_pod and is_ours and variables.get("ELASTREC_POD", "").startswith(pod):
                found.append(process)
        return [process for process in found if process.pid != os.getpid()]

    def launch(self, prepared: jobs.Prepared) -> Run:
        """The job of `prepared` under a new id, without history."""
        return self.begin(renamed(prepared))

    def begin(self, prepared: jobs.Prepared) -> Run:
        """The job of `prepared` under its own id, which may have run before."""
        request = jobs.launch_request(prepared, jobs.warm_start(self.platform, prepared))
        self.platform.launcher.submit(master_pod(request, self.platform.cluster_config, new_token()))
        return Run(self, prepared)


def renamed(prepared: jobs.Prepared) -> jobs.Prepared:
    """The same job under an id of its own."""
    return msgspec.structs.replace(prepared, job_id=jobs.job_id_for("surroundings", uuid.uuid4().hex))


@dataclass
class Run:
    """A job under way."""

    site: Site
    prepared: jobs.Prepared

    @property
    def job_id(self) -> str:
        return self.prepared.job_id

    def pod(self, role: Role) -> PodStatus | None:
        """The first pod of a role."""
        pods = self.site.platform.launcher.pods(self.job_id)
        return next((pod for pod in pods if pod.name == pod_name(self.job_id, role)), None)

    def metrics(self) -> TrainingMetrics:
        """What the master says now; fails when the job has failed."""
        observation = jobs.observe(self.site.platform, self.job_id)
        assert observation.metrics.phase is not Phase.FAILED, observation.failure
        return observation.metrics

    def when(self, fact: Callable[[TrainingMetrics], T | None], what: str, seconds: float = 240.0) -> T:
        """The first truthy answer."""

        def look() -> T | None:
            time.sleep(_LOOK_SECONDS)
            return fact(self.metrics())

        return wait_for(look, seconds, what)

    def trained(self, share: float) -> None:
        """Returns when that share of the shards is done."""
        self.when(lambda found: found.shards_done >= share * SHARDS, f"{share} of the shards")

    def kill(self, name: str) -> psutil.Process:
        """`kill -9` of the process of a pod, by the end of its name."""
        (victim,) = self.site.processes(f"{self.job_id}-{name}")
        victim.kill()
        return victim

    def explanation(self) -> Explanation:
        return jobs.explanation(self.site.platform, self.job_id)

    def entry(self, words: str) -> str:
        """The first entry of the timeline that begins so, with its cause; empty when there is none."""
        entries = self.explanation().timeline
        return next((f"{entry.what}: {entry.cause}" for entry in entries if entry.what.startswith(words)), "")

    def finished(self, seconds: float = 600.0) -> TrainingMetrics:
        """The job's end: it has succeeded, every row was trained and counts once, and the model can be read."""
        metrics = self.when(lambda found: found if found.phase.is_final else None, "the end of the job", seconds)
        story = as_text(self.explanation())
        assert metrics.phase is Phase.SUCCEEDED, story
        assert metrics.shards_done == metrics.shards_total == SHARDS
        assert metrics.samples_trained >= metrics.samples_total == ROWS
        rows = jobs.ledger(self.site.platform, self.job_id)
        assert kept(rows) == ROWS, story
        assert metrics.checkpoint is not None
        record = open_record(metrics.checkpoint)
        # Reading checks every checksum.
        assert verify(record) > 0
        return metrics

    def finish(self) -> None:
        """Ends the master and looks whether anything is left."""
        jobs.finish(self.site.platform, self.job_id)
        assert self.site.platform.launcher.pods(self.job_id) == []
        wait_for(lambda: not self.site.processes(self.job_id), 240, "no process of the job")


def kept(ledger: Any) -> int:
    """Training rows that the model has seen, each counted once."""
    table = ledger.to_pandas()
    return int(table[table["kind"] == "train"]["kept"].sum())
