"""Values that the steps of a job return, and an Airflow context, for tests of the operators."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from elastrec.operators.base import ElastrecOperator, extended, give
from elastrec.operators.training import LaunchJobOperator, OfflinePhaseOperator
from elastrec.operators.values import AllocatedJob, JudgedJob, LaunchedJob, TrainedJob
from elastrec.platform.jobs import Allocation, GateDecision, Interval, Launched, Observation, Prepared
from elastrec.platform.jobs.types import ModelScore
from elastrec.platform.specs.errors import HistoryAwayError, JobNotFoundError
from elastrec.platform.specs.metrics import Phase, TrainingMetrics

OWNER = "daily_retraining/scheduled__2026-01-03/task"
INTERVAL = Interval("2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00", "2026-01-03T00:00:00+00:00")
PREPARED = Prepared(
    job_id="clicks-1",
    job_json="{}",
    interval=INTERVAL,
    training_manifest="training.json",
    evaluation_manifest="evaluation.json",
    training_rows=10,
    evaluation_rows=5,
)
ALLOCATION = Allocation(
    workers=2,
    parameter_servers=1,
    worker_cores=1.0,
    worker_memory_bytes=2**30,
    parameter_server_cores=0.5,
    parameter_server_memory_bytes=2**30,
    source="test",
)
LAUNCHED = Launched(
    job_id="clicks-1", master_pod="clicks-1-master", run_id="abc", run_url="http://mlflow/abc", allocation=ALLOCATION
)
DECISION = GateDecision(passed=True, reason="no champion yet", candidate=ModelScore(0.7, 0.9, 5))
ALLOCATED_JOB = extended(AllocatedJob, ALLOCATION, prepared=PREPARED)
LAUNCHED_JOB = extended(LaunchedJob, LAUNCHED, prepared=PREPARED)
TRAINED_JOB = TrainedJob(launched=LAUNCHED_JOB)
JUDGED_JOB = extended(JudgedJob, DECISION, launched=LAUNCHED_JOB)


def plain(value: msgspec.Struct) -> dict[str, Any]:
    """What a task's output looks like to the next task."""
    return give(value)


@dataclass
class TaskInstance:
    """The part of Airflow's task instance that operators use."""

    dag_id: str = "daily_retraining"
    run_id: str = "scheduled__2026-01-03"
    task_id: str = "task"
    try_number: int = 1
    map_index: int | None = -1
    start_date: datetime = datetime(2026, 1, 3, 2, tzinfo=UTC)
    max_tries: int = 3
    pushed: dict[str, Any] = field(default_factory=dict)

    @property
    def log_url(self) -> str:
        return f"http://airflow/{self.dag_id}/{self.run_id}/{self.task_id}?try_number={self.try_number}"

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value

    def xcom_pull(self, task_ids: str, key: str) -> Any:
        """Of what was pushed here, as another task gets it: through JSON."""
        return msgspec.json.decode(msgspec.json.encode(self.pushed[key]))


def context(conf: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A context of the scheduled run of 2026-01-03 02:00."""
    task = TaskInstance(**fields)
    moment = datetime(2026, 1, 3, 2, tzinfo=UTC)
    run = SimpleNamespace(
        dag_id=task.dag_id,
        run_id=task.run_id,
        logical_date=moment,
        data_interval_start=moment,
        data_interval_end=moment,
        conf=conf or {},
    )
    return {"ti": task, "dag_run": run}


class Platform:
    """Records what the operators ask of `elastrec.platform.jobs`, and answers as a small cluster would."""

    def __init__(self, phase: Phase | None = None) -> None:
        self.phase = phase
        self.calls: list[str] = []
        self.left: TrainingMetrics | None = None
        self.launch_error: Exception | None = None
        self.tracking_uri = "http://mlflow"
        self.run_tags: dict[str, str] = {}
        self.has_tracking = True

    def observe(self, platform: Any, job_id: str) -> Observation:
        if self.phase is None:
            raise JobNotFoundError(f"job {job_id}: not in the cluster; it was stopped, finished or never launched")
        return Observation(TrainingMetrics(job=job_id, phase=self.phase, evaluated=True, auc=0.75))

    def result_of(self, platform: Any, prepared: Prepared) -> TrainingMetrics:
        return self.left or self.observe(platform, prepared.job_id).metrics

    def launch(self, platform: Any, prepared: Prepared, allocation: Allocation, owner: str = "") -> Launched:
        self.calls.append(f"launch as {owner}")
        self.run_tags = dict(prepared.run_tags)
        if self.launch_error:
            raise self.launch_error
        self.phase = self.phase or Phase.STARTING
        return LAUNCHED

    def take_over(self, platform: Any, job_id: str, owner: str) -> None:
        self.calls.append(f"take over as {owner}")

    def job_page(self, platform: Any, prepared: Prepared) -> str:
        return f"http://mlflow/list/{prepared.job_id}"

    def tracking_answers(self, platform: Any) -> bool:
        return self.has_tracking

    def publish_patience_seconds(self, prepared: Prepared) -> float:
        return 1800.0

    def away_message(self, platform: Any, prepared: Prepared) -> str:
        return f"the model of job {prepared.job_id} is trained"

    def with_run(self, platform: Any, prepared: Prepared, launched: Launched) -> Launched:
        return launched if launched.run_id else LAUNCHED

    def is_trained(self, platform: Any, prepared: Prepared) -> bool:
        return False

    def finish_job(self, platform: Any, prepared: Prepared) -> None:
        self.finish(platform, prepared.job_id)
        if not self.has_tracking:
            raise HistoryAwayError("MLflow does not answer")

    def finish(self, platform: Any, job_id: str) -> None:
        self.calls.append("finish")
        self.phase = None

    def remove_unsuccessful(self, platform: Any, job_id: str) -> bool:
        if self.phase in (Phase.FAILED, Phase.STOPPED):
            self.finish(platform, job_id)
        return self.phase is not None

    def stop(self, platform: Any, job_id: str, reason: str, owner: str = "") -> bool:
        self.calls.append(f"stop as {owner or 'anybody'}")
        return True

    def failure_report(self, platform: Any, job_id: str) -> str:
        return "job clicks-1 Failed\nTraceback (most recent call last):\nZeroDivisionError: division by zero"


@pytest.fixture(name="platform")
def platform_fixture(monkeypatch: pytest.MonkeyPatch) -> Platform:
    made = Platform()
    monkeypatch.setattr(ElastrecOperator, "platform", property(lambda self: made))
    names = (
        "observe",
        "result_of",
        "launch",
        "finish",
        "stop",
        "failure_report",
        "job_page",
        "tracking_answers",
        "with_run",
    )
    for name in (
        *names,
        "publish_patience_seconds",
        "away_message",
        "is_trained",
        "finish_job",
        "take_over",
        "remove_unsuccessful",
    ):
        monkeypatch.setattr(f"elastrec.platform.jobs.{name}", getattr(made, name))
    return made


def launch() -> LaunchJobOperator:
    return LaunchJobOperator(task_id="task", allocation=plain(ALLOCATED_JOB))


def offline(*, deferrable: bool = True, **fields: Any) -> OfflinePhaseOperator:
    return OfflinePhaseOperator(task_id="task", launched=plain(LAUNCHED_JOB), deferrable=deferrable, **fields)


def event(outcome: str, reason: str = "") -> dict[str, str]:
    return {"job_id": "clicks-1", "owner": "me", "outcome": outcome, "reason": reason}
