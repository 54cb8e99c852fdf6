"""The data of the pages, from the cluster, the masters and MLflow; a page is shown even if some of them do not answer.

Data is cached for a moment, so that the number of requests to a master does not depend on the number of viewers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.configuration import conf

from elastrec.operators import settings
from elastrec.platform.history.words import Chart
from elastrec.platform.specs.errors import CheckpointError, ClusterError, ElastrecError, HistoryError, TransportError
from elastrec.platform.specs.metrics import Phase, Role, TrainingMetrics

if TYPE_CHECKING:
    from elastrec.platform.clusters.pods import PodStatus
    from elastrec.platform.history import History
    from elastrec.platform.history.records import JobRecord
    from elastrec.platform.history.scaling_figures import Decision
    from elastrec.platform.jobs import Platform
    from elastrec.platform.transport.messages.ledger import Explanation

Look = TypeVar("Look")
KEPT_SECONDS = 2.0
_MASTER_SECONDS = 3.0
_RECENT = 30
_SIDE_BY_SIDE = 16


@dataclass(frozen=True)
class JobLook:
    """One job.

    Attributes:
        metrics: None if the job is not in the cluster any more.
        record: of the job in MLflow; None if there is none, or MLflow does not answer.
        run_url: of its run in MLflow; empty if unknown.
        decision: the last scaling decision and the change it makes; None if none is known.
    """

    job_id: str
    metrics: TrainingMetrics | None = None
    is_reachable: bool = True
    record: JobRecord | None = None
    run_url: str = ""
    decision: tuple[Decision, str] | None = None

    @property
    def phase(self) -> str:
        if self.metrics is not None:
            return self.metrics.phase.value
        return self.record.phase.value if self.record is not None else "unknown"

    @property
    def reason(self) -> str:
        return self.metrics.reason if self.metrics is not None else self.record.reason if self.record else ""

    @property
    def failing_saves(self) -> str:
        """That the job's saves fail, in words; empty if they do not."""
        from elastrec.platform.specs.text import plain_words

        return plain_words.failing_saves(self.metrics) if self.metrics is not None else ""

    @property
    def progress(self) -> float | None:
        """Share of the training rows, 0 to 1."""
        metrics = self.metrics
        if metrics is None or not metrics.samples_total:
            return None
        return min(1.0, metrics.samples_trained / metrics.samples_total)

    @property
    def auc(self) -> float | None:
        if self.metrics is not None and self.metrics.auc is not None:
            return self.metrics.auc
        return self.record.auc if self.record is not None else None

    @property
    def normalized_entropy(self) -> float | None:
        if self.metrics is not None and self.metrics.normalized_entropy is not None:
            return self.metrics.normalized_entropy
        return self.record.normalized_entropy if self.record is not None else None

    def up(self, role: str) -> int | None:
        """The number of working pods of a role."""
        if self.metrics is None:
            return None
        return sum(pod.role == role and pod.state.lower() in ("ready", "running") for pod in self.metrics.pods)

    @property
    def core_hours(self) -> float | None:
        return self.record.core_hours if self.record is not None else None

    @property
    def days(self) -> str:
        """Of the training data, both inclusive."""
        from elastrec.platform.history.records import days

        return days(*self.record.interval) or "all" if self.record is not None else ""

    @property
    def cost(self) -> str:
        """In money, with the currency; empty where that is not known."""
        return self.record.cost if self.record is not None else ""


@dataclass(frozen=True)
class AllJobs:
    """All jobs of a connection.

    Attributes:
        running: jobs of the cluster; recent: jobs in MLflow that are not in the cluster, the newest first.
        away: the sources that do not answer, and why.
    """

    running: list[JobLook] = field(default_factory=list)
    recent: list[JobLook] = field(default_factory=list)
    away: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class OneJob:
    """One job, in full.

    Attributes:
        failure: why it failed, with the user's traceback if there is one.
        pods: as observed by the cluster.
        explanation: None if neither its master nor its store has one.
        meanings: of the explanation's parts.
        decisions: the latest scaling decisions and the changes they make, the newest first.
        away: the sources that do not answer, and why.
    """

    job: JobLook
    failure: str = ""
    pods: list[PodStatus] = field(default_factory=list)
    explanation: Explanation | None = None
    meanings: dict[str, str] = field(default_factory=dict)
    charts: list[Chart] = field(default_factory=list)
    decisions: list[tuple[Decision, str]] = field(default_factory=list)
    away: list[str] = field(default_factory=list)


class _Kept:
    """Caches the last answer to each request, and makes one request at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[Any, threading.Lock] = {}
        self._looks: dict[Any, tuple[float, Any]] = {}

    def look(self, key: Any, ask: Callable[[], Look]) -> Look:
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            at, kept = self._looks.get(key, (float("-inf"), None))
            if time.monotonic() - at > KEPT_SECONDS:
                kept = ask()
                with self._lock:
                    self._forget_old()
                    self._looks[key] = time.monotonic(), kept
            return kept

    def _forget_old(self) -> None:
        now = time.monotonic()
        for key in [key for key, (at, _) in self._looks.items() if now - at > 60 * KEPT_SECONDS]:
            del self._looks[key]
            self._locks.pop(key, None)


_kept = _Kept()


def connections() -> list[str]:
    """The connections whose jobs are shown: Airflow's option `[elastrec] page_connections`, separated by commas; the
    default connection if it is empty."""
    named = conf.get("elastrec", "page_connections", fallback="")
    return [name.strip() for name in named.split(",") if name.strip()] or [settings.DEFAULT_CONNECTION_ID]


def all_jobs(connection: str) -> AllJobs:
    """All jobs of the cluster and of MLflow's default experiment."""
    return _kept.look((connection,), lambda: _all_jobs(connection))


def one_job(connection: str, job_id: str) -> OneJob:
    """One job, whether it runs or not."""
    return _kept.look((connection, job_id), lambda: _one_job(connection, job_id))


def _platform(connection: str) -> Platform:
    from elastrec.operators.hook import ElastrecHook

    return ElastrecHook(connection).platform


def _all_jobs(connection: str) -> AllJobs:
    away: list[str] = []
    try:
        platform = _platform(connection)
    except Exception as error:  # includes errors of Airflow's secrets backends
        return AllJobs(away=[f"the connection {connection} cannot be used: {error}"])
    try:
        masters = [pod for pod in platform.launcher.jobs() if pod.role is Role.MASTER]
    except ClusterError as error:
        away.append(f"the cluster does not answer: {error}")
        masters = []
    names = sorted(pod.job for pod in masters)
    history = _history(platform, away)
    records = _records(history, away)
    _add_other_experiments(records, history, masters, away)
    with ThreadPoolExecutor(_SIDE_BY_SIDE, "look") as pool:
        running = list(pool.map(lambda name: _look(platform, name, records.get(name)), names))
        decided = list(pool.map(lambda job: _decisions(platform, history, job.record), running))
    running = [
        replace(job, decision=found[0] if found else None) for job, (found, _) in zip(running, decided, strict=True)
    ]
    # The same reason of many jobs is shown once.
    away += dict.fromkeys(problem for _, problem in decided if problem)
    recent = [JobLook(job_id, record=record, run_url=url) for job_id, (record, url) in records.items()]
    return AllJobs(running, [ended for ended in recent if ended.job_id not in names][:_RECENT], away)


def _one_job(connection: str, job_id: str) -> OneJob:
    from elastrec.platform import jobs
    from elastrec.platform.master.measuring.time_profile import PARTS

    away: list[str] = []
    try:
        platform = _platform(connection)
    except Exception as error:
        return OneJob(JobLook(job_id), away=[f"the connection {connection} cannot be used: {error}"])
    history = _history(platform, away)
    records = _records(history, away, job_id)
    record, url = records.get(job_id, (None, ""))
    job, failure, pods, explained = JobLook(job_id, record=record, run_url=url), "", [], None
    try:
        pods = jobs.pods_of_job(platform, job_id)
        _add_other_experiments(records, history, [pod for pod in pods if pod.role is Role.MASTER], away)
        record, url = records.get(job_id, (None, ""))
        job = JobLook(job_id, record=record, run_url=url)
        if pods:
            observation = jobs.observe(platform, job_id, _MASTER_SECONDS)
            failure, job = observation.failure, JobLook(job_id, observation.metrics, observation.reachable, record, url)
    except ClusterError as error:
        away.append(str(error))
    try:
        explained = jobs.explanation(platform, job_id)
    except (CheckpointError, ClusterError, TransportError) as error:
        away.append(f"what happened to it is unknown: {error}")
    charts = _charts(history, record, away)
    decisions, problem = _decisions(platform, history, record)
    away += [problem] if problem else []
    return OneJob(job, failure, pods, explained, PARTS, charts, decisions, away)


def _look(platform: Platform, job_id: str, recorded: tuple[JobRecord, str] | None) -> JobLook:
    from elastrec.platform.jobs import observe

    record, url = recorded or (None, "")
    try:
        observation = observe(platform, job_id, _MASTER_SECONDS)
    except ElastrecError as error:
        unknown = TrainingMetrics(job=job_id, phase=Phase.UNKNOWN, reason=str(error))
        return JobLook(job_id, unknown, False, record, url)
    return JobLook(job_id, observation.metrics, observation.reachable, record, url)


def _history(platform: Platform, away: list[str]) -> History | None:
    """MLflow's default experiment; None when MLflow does not answer."""
    from elastrec.platform.history import History
    from elastrec.platform.jobs import tracking_answers
    from elastrec.platform.specs.job import HistorySpec

    if not tracking_answers(platform):
        away.append("MLflow does not answer: past jobs, costs and charts are not shown")
        return None
    return History(platform.tracking_uri, HistorySpec().experiment, platform.ui_url)


def _records(history: History | None, away: list[str], job_id: str = "") -> dict[str, tuple[JobRecord, str]]:
    """From MLflow: the newest run of each job, and its page."""
    from elastrec.platform.history import JobFilter

    records: dict[str, tuple[JobRecord, str]] = {}
    if history is None:
        return records
    try:
        for record in history.job_records(JobFilter(job_id=job_id or None), _RECENT * 2):
            records.setdefault(record.job_id, (record, history.run_url(record.run_id)))
    except HistoryError as error:
        away.append(str(error))
    return records


def _add_other_experiments(
    records: dict[str, tuple[JobRecord, str]], history: History | None, masters: list[PodStatus], away: list[str]
) -> None:
    """Adds the runs of running jobs whose job files name another experiment; the master's pod has the id of its run."""
    from elastrec.platform.jobs.starting.launching import RUN_LABEL

    if history is None:
        return
    for pod in masters:
        run_id = pod.labels.get(RUN_LABEL, "")
        if not run_id or pod.job in records:
            continue
        try:
            records[pod.job] = history.record(run_id), history.page(run_id)
        except HistoryError as error:
            away.append(str(error))


def _decisions(
    platform: Platform, history: History | None, record: JobRecord | None
) -> tuple[list[tuple[Decision, str]], str]:
    """The latest decisions about a job, the newest first; and why they are unknown, or an empty text."""
    from elastrec.platform.history.decisions import Decisions
    from elastrec.platform.history.scaling_figures import change

    if history is None or record is None:
        return [], ""
    try:
        decisions = Decisions(platform.tracking_uri, "").decisions(record.run_id)
    except HistoryError as error:
        return [], str(error)
    return [(each, change(each.before, each.after)) for each in reversed(decisions[-_RECENT:])], ""


def _charts(history: History | None, record: JobRecord | None, away: list[str]) -> list[Chart]:
    from elastrec.platform.history import metric_names as names

    if history is None or record is None:
        return []
    try:
        charts = [
            Chart.of(title, history.series(record.run_id, name))
            for title, name in (("Samples per second", names.SAMPLES_PER_SECOND), ("AUC while training", names.AUC))
        ]
    except HistoryError as error:
        away.append(str(error))
        return []
    return [chart for chart in charts if chart is not None]
