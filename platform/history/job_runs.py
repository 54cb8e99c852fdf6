"""The runs in MLflow that jobs have: which one is a job's, and what they say."""

from __future__ import annotations

from typing import Any

import structlog

from elastrec.platform.history.connection import Connection
from elastrec.platform.history.records import (
    TAG_EARLIER_TERMS,
    TAG_INTERVAL_END,
    TAG_JOB_ID,
    JobFilter,
    JobRecord,
    metric_value,
    read_record,
)
from elastrec.platform.specs.errors import HistoryError

_log = structlog.get_logger(__name__)


class JobRuns(Connection):
    """Reads the runs of one experiment.

    Every method raises HistoryError if the server cannot be reached or refuses.
    """

    def _runs(self, job_id: str) -> list[Any]:
        with self._explained(f"look for job {job_id}"):
            return list(
                self._client.search_runs(
                    [self._experiment_id], f"tags.`{TAG_JOB_ID}` = '{job_id}'", order_by=["attributes.start_time ASC"]
                )
            )

    def _live_run(self, job_id: str, begins: bool, earlier_terms: int | None = None) -> Any | None:
        """The job's earliest open run, or its latest successful one; if the job begins anew, an open one without
        figures.

        Args:
            earlier_terms: of the training whose run it is to be, unless the job begins anew; None: of any training.
        """
        runs = self._runs(job_id)
        if earlier_terms is not None and not begins:
            # Runs of earlier versions do not say to which training they belong.
            of_training = (None, str(earlier_terms))
            runs = [run for run in runs if run.data.tags.get(TAG_EARLIER_TERMS) in of_training]
        opened = [run for run in runs if _is_open(run) and not (begins and run.data.metrics)]
        opened.sort(key=lambda run: (run.info.start_time, run.info.run_id))
        succeeded = [run for run in runs if run.info.status == "FINISHED" and not begins]
        return (opened[:1] or succeeded[-1:] or [None])[0]

    def open_run(self, job_id: str) -> str:
        """The job's open run; empty if there is none."""
        opened = [run for run in self._runs(job_id) if _is_open(run)]
        return str(opened[0].info.run_id) if opened else ""

    def has_figures(self, run_id: str) -> bool:
        """Whether anything was measured in the run."""
        with self._explained(f"read run {run_id}"):
            return bool(self._client.get_run(run_id).data.metrics)

    def is_current(self, run_id: str) -> bool:
        """Whether the run is that of its job: false if somebody has deleted it, or if it is closed without success and
        the job has another one."""
        with self._explained(f"read run {run_id}"):
            run = self._known_run(run_id)
        if run is None or run.info.lifecycle_stage != "active":
            return False
        has_ended_badly = not _is_open(run) and run.info.status != "FINISHED"
        return not has_ended_badly or self._live_run(run.data.tags.get(TAG_JOB_ID, ""), begins=False) is None

    def trained_until(self, run_id: str) -> str:
        """The end of the training rows of a run's job, ISO 8601 with an offset; empty if it is unknown, because the run
        is gone, is not of a job, or had rows without days."""
        if not run_id:
            return ""
        with self._explained(f"read run {run_id}"):
            run = self._known_run(run_id)
        return "" if run is None else str(run.data.tags.get(TAG_INTERVAL_END, ""))

    def present_run(self, run_id: str) -> str:
        """The run itself; if somebody has deleted it, the job's open run in the same experiment, or an empty text."""
        with self._explained(f"read run {run_id}"):
            run = self._known_run(run_id)
            if run is None:
                return ""
            if run.info.lifecycle_stage == "active":
                return run_id
            same_job = f"tags.`{TAG_JOB_ID}` = '{run.data.tags.get(TAG_JOB_ID, '')}' AND attributes.status = 'RUNNING'"
            opened = self._client.search_runs([run.info.experiment_id], same_job, max_results=1)
        return str(opened[0].info.run_id) if opened else ""

    def _known_run(self, run_id: str) -> Any | None:
        """The run, also if somebody has deleted it; None if MLflow does not know it any more."""
        from mlflow.exceptions import MlflowException

        try:
            return self._client.get_run(run_id)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise

    def series(self, run_id: str, name: str) -> list[tuple[int, float]]:
        """(step, value) of one metric, by step; the last value if a step was measured twice."""
        with self._explained(f"read {name} of run {run_id}"):
            points = self._client.get_metric_history(run_id, name)
        points = sorted(points, key=lambda metric: metric.timestamp)
        return sorted({metric.step: metric_value(metric.value) for metric in points}.items())

    def job_records(self, wanted: JobFilter | None = None, limit: int = 200) -> list[JobRecord]:
        """Jobs of this experiment, the newest first.

        A job's run that cannot be read (incomplete, or changed by hand) is left out and named in the log, because one
        bad run must not prevent the use of all others.
        """
        found: dict[str, Any] = {}
        for expression in (wanted or JobFilter()).expressions():
            token = None
            with self._explained("search job records"):
                while len(found) < limit or token is None:
                    page = self._client.search_runs(
                        [self._experiment_id],
                        expression,
                        max_results=min(limit, 1000),
                        order_by=["attributes.start_time DESC"],
                        page_token=token,
                    )
                    found |= {run.info.run_id: run for run in page}
                    token = page.token
                    if not token:
                        break
        records = []
        for run in found.values():
            try:
                records.append(read_record(run))
            except HistoryError as error:
                _log.warning("run_left_out", run_id=run.info.run_id, reason=str(error))
        records.sort(key=lambda record: record.started_unix_seconds, reverse=True)
        return records[:limit]

    def record(self, run_id: str) -> JobRecord:
        """The job of a run."""
        with self._explained(f"read run {run_id}"):
            return read_record(self._client.get_run(run_id))


def _is_open(run: Any) -> bool:
    return run.info.status in ("RUNNING", "SCHEDULED")
