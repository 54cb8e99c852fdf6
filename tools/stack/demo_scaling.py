"""The demo's running job: rounds of `auto_scaling` until it has grown, then a killed parameter server."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

from elastrec.operators.scaling import REASONS_KEY
from elastrec.platform.specs import environment
from elastrec.platform.specs.metrics import Phase, Role, TrainingMetrics
from tools.stack.rest import AirflowClient

DAG_ID = "auto_scaling"
_PAUSE_SECONDS = 20.0
_ENDED = ("success", "failed")


@dataclass
class Scaling:
    """One job of the demo, checked regularly while it trains.

    Args:
        say: prints a line.
        kills: whether a parameter server is killed once the job has grown.
    """

    airflow: AirflowClient
    say: Callable[[str], object]
    kills: bool
    changes: list[str] = field(default_factory=list)
    """The changes by rounds, as in Airflow's grid."""
    grown: str = ""
    """The growth in parameter servers, whether a round or the job's master, between rounds, has decided on it."""
    killed: str = ""
    """Name of the parameter server that was killed."""
    back_after_seconds: float | None = None
    """Seconds from the kill until the job trained with the server again."""
    why_unchanged: str = "no round of scaling has ended while it trained"
    """The reason of the last round that did not change the job."""
    why_not_killed: str = "the job was not seen training"
    """The last reason while the job trained for which no parameter server was killed."""
    _reported: set[str] | None = None
    _rounds: int = 0
    _next_round: float = 0.0
    _killed_at: float = 0.0
    _generation: int = 0
    _first_servers: int = 0

    def look(self, job_id: str, metrics: TrainingMetrics) -> None:
        """Takes the next step if it is due."""
        if self._follow_rounds(job_id) and metrics.phase is Phase.TRAINING and time.monotonic() >= self._next_round:
            # The schedule's next round may be three minutes away.
            self.airflow.trigger(DAG_ID, {})
        if metrics.phase is Phase.TRAINING and metrics.migration is None:
            self._follow_servers(metrics)
        if self.killed:
            self._follow_kill(metrics)
        elif metrics.phase is Phase.TRAINING:
            self.why_not_killed = self._obstacle(metrics) or self._kill(job_id, metrics)

    def _obstacle(self, metrics: TrainingMetrics) -> str:
        """Why no parameter server of a job that trains may be killed; empty: one may."""
        if not self.kills:
            return "--no-kill"
        if not self.changes and not self.grown:
            return "the job has not grown"
        if metrics.checkpoint is None:
            return "the job had no record, without which it would begin again"
        return "the job's pods were being changed until its training ended" if metrics.migration is not None else ""

    def _follow_servers(self, metrics: TrainingMetrics) -> None:
        servers = len(_servers(metrics))
        self._first_servers = self._first_servers or servers
        if servers > self._first_servers and not self.grown:
            self.grown = f"{self._first_servers} → {servers} servers"
            self.say(f"the job has grown: {self.grown}")

    def _follow_rounds(self, job_id: str) -> bool:
        """Prints the results of ended rounds, including scheduled ones; returns whether no round is running."""
        runs = self.airflow.runs(DAG_ID)
        ended = [run_id for run_id, state in runs.items() if state in _ENDED]
        if self._reported is None:
            self._reported = set(ended)  # of an earlier demo in the same home
        for run_id in ended:
            if run_id not in self._reported:
                self._reported.add(run_id)
                self._end_round(run_id, runs[run_id], job_id)
        return len(ended) == len(runs)

    def _end_round(self, run_id: str, state: str, job_id: str) -> None:
        self._rounds += 1
        output = self.airflow.xcom(DAG_ID, run_id, "migrate", map_index=0) if state == "success" else None
        if state != "success":
            found = f"failed: see the DAG {DAG_ID} in Airflow"
            self.why_unchanged = f"the last round {found}"
        elif output is None:
            reasons = self.airflow.xcom(DAG_ID, run_id, "plan", REASONS_KEY) or {}
            self.why_unchanged = reasons.get(job_id, "the last round did not find the job training")
            found = f"leaves the job as it is: {self.why_unchanged}"
        elif output["migrated"]:
            found = f"{output['chosen']}, pause of training {output['pause_seconds'] or 0.0:.2f} s"
            self.changes.append(found)
        else:
            found = self.why_unchanged = f"{output['chosen']}: {output['outcome']} {output['reason']}".rstrip()
        self.say(f"scaling round {self._rounds}: {found}")
        self._next_round = time.monotonic() + _PAUSE_SECONDS

    def _kill(self, job_id: str, metrics: TrainingMetrics) -> str:
        """Kills the process of a parameter server; returns why it did not, or an empty text."""
        servers = _servers(metrics)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                found = process.environ()
                if found.get(environment.JOB) == job_id and found.get(environment.POD) in servers:
                    process.kill()
                    self.killed = found[environment.POD]
                    self._killed_at, self._generation = time.monotonic(), metrics.generation
                    self.say(f"killed the parameter server {self.killed} (process {process.pid}), as a lost node would")
                    return ""
        return "no process of its parameter servers was found on this machine"

    def _follow_kill(self, metrics: TrainingMetrics) -> None:
        is_back = metrics.generation > self._generation and metrics.phase is Phase.TRAINING
        if self.back_after_seconds is None and is_back:
            self.back_after_seconds = time.monotonic() - self._killed_at
            self.say(f"the job trains again {self.back_after_seconds:.0f} s after the kill, from its last record")


def _servers(metrics: TrainingMetrics) -> list[str]:
    """Names of the running parameter servers."""
    return [pod.name for pod in metrics.pods if pod.role == Role.PARAMETER_SERVER and pod.state == "Running"]
