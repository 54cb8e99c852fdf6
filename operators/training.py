"""Operators of the first half of a job's life: prepare, warm start, launch, and the offline phase."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from airflow.sdk.exceptions import AirflowTaskTerminated

from elastrec.operators.base import (
    BAD_INPUT,
    AirflowException,
    AirflowFailException,
    ElastrecOperator,
    StartingTask,
    WaitingOperator,
    extended,
    give,
    log_tag,
    no_retry_for_bad_input,
    owner_key,
    owner_token,
    owner_tokens,
    run_tags,
    take,
    watched,
)
from elastrec.operators.links import push_link
from elastrec.operators.params import read_interval, read_job, refuse_unknown
from elastrec.operators.progress import progress_line
from elastrec.operators.triggers import ENDED, TIMED_OUT, JobPhaseTrigger
from elastrec.platform.specs.errors import OtherJobError

if TYPE_CHECKING:
    from datetime import datetime

    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context
    from airflow.sdk.types import DagRunProtocol

    from elastrec.operators.values import LaunchedJob
    from elastrec.platform.jobs import Allocation, Prepared
    from elastrec.platform.specs.metrics import TrainingMetrics


class PrepareDataOperator(ElastrecOperator):
    """Reads the job, finds its rows and its checkpoint, and refuses a job that cannot run before anything starts.

    Args:
        jobs_folder: the folder of relative job files.
        job_file, job, overrides, start_from, evaluation_day, interval_start, interval_end: see
            `params.training_params`.

    A run's `conf` may hold the DAG's params and nothing else.

    Output: `Prepared`.
    """

    template_fields: Sequence[str] = (
        *ElastrecOperator.template_fields,
        "job_file",
        "job",
        "overrides",
        "start_from",
        "evaluation_day",
        "interval_start",
        "interval_end",
    )

    def __init__(
        self,
        *,
        jobs_folder: str | Path,
        job_file: str | None = None,
        job: Mapping[str, Any] | str | None = None,
        overrides: Mapping[str, Any] | str | None = None,
        start_from: str | None = None,
        evaluation_day: str | None = None,
        interval_start: str | None = None,
        interval_end: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.jobs_folder = str(jobs_folder)
        self.job_file = job_file
        # Templates, until Airflow renders them to the values of the fields.
        self.job: Any = job
        self.overrides: Any = overrides
        self.start_from = start_from
        self.evaluation_day = evaluation_day
        self.interval_start = interval_start
        self.interval_end = interval_end

    def execute(self, context: Context) -> dict[str, Any]:
        """Runs the checks; a bad job, bad data or a bad connection fails without a retry."""
        from elastrec.platform.history.connection import client_loaded_beside
        from elastrec.platform.jobs import job_id_for, job_page, prepare

        run = context["dag_run"]
        with no_retry_for_bad_input(), client_loaded_beside():
            of_dag = self.dag.params if self.has_dag() else {}  # type: ignore[no-untyped-call]
            refuse_unknown(run.conf or {}, {*self.params, *of_dag})
            job = read_job(Path(self.jobs_folder), self.job_file, self.job, self.overrides, self.start_from)
            interval = read_interval(
                self.interval_start,
                self.interval_end,
                _data_interval(run),
                evaluation_day=self.evaluation_day,
                timezone=job.spec.data.timezone,
            )
            if interval is not None and not (self.interval_start or self.evaluation_day):
                self.log.info(
                    "the days are those of the run's logical date %s: %s", run.logical_date, interval.in_words()
                )
            job_id = job_id_for(job.metadata.name, owner_key(context))
            prepared = prepare(self.platform, job, job_id, interval)
        prepared = msgspec.structs.replace(prepared, page=job_page(self.platform, prepared), run_tags=run_tags(context))
        push_link(context, prepared.page)
        self.log.info(
            "job %s: %s rows to train on (%s to %s), %s rows to evaluate on (%s to %s)",
            job_id,
            f"{prepared.training_rows:,}",
            prepared.interval.start,
            prepared.interval.end,
            f"{prepared.evaluation_rows:,}",
            prepared.interval.evaluation_begin,
            prepared.interval.evaluation_end,
        )
        self.log.info("continues from %s", prepared.start_record or "nothing")
        if prepared.start_note:
            self.log.info(prepared.start_note)
        if prepared.untrained:
            self.log.warning(prepared.untrained)
        for line in "\n".join(prepared.tables).splitlines():
            self.log.info(line)
        return give(prepared)


class WarmStartOperator(ElastrecOperator):
    """Chooses the start-up sizes.

    Args:
        prepared: output of `PrepareDataOperator`.

    Output: `AllocatedJob`.
    """

    template_fields: Sequence[str] = (*ElastrecOperator.template_fields, "prepared")

    def __init__(self, *, prepared: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.prepared = prepared

    def execute(self, context: Context) -> dict[str, Any]:
        """Chooses the sizes and logs their source."""
        from elastrec.operators.values import AllocatedJob
        from elastrec.platform.jobs import Prepared, job_page, warm_start

        prepared = take(Prepared, self.prepared)
        # Another request to MLflow would take a second, mostly for loading its client.
        push_link(context, prepared.page or job_page(self.platform, prepared))
        allocation = warm_start(self.platform, prepared)
        self.log.info(
            "%d workers of %g cores, %d servers of %g cores; source: %s",
            allocation.workers,
            allocation.worker_cores,
            allocation.parameter_servers,
            allocation.parameter_server_cores,
            allocation.source,
        )
        return give(extended(AllocatedJob, allocation, prepared=prepared))


class LaunchJobOperator(ElastrecOperator, StartingTask):
    """Starts the job, or attaches to the job that this DAG run has already started.

    Args:
        allocation: output of `WarmStartOperator`.

    Output: `LaunchedJob`.
    """

    template_fields: Sequence[str] = (*ElastrecOperator.template_fields, "allocation")

    def __init__(self, *, allocation: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.allocation = allocation
        self._owners: list[str] = []

    def execute(self, context: Context) -> dict[str, Any]:
        """Launches; a job of an earlier try that has failed or was stopped is removed first."""
        from elastrec.operators.values import AllocatedJob
        from elastrec.platform.jobs import Allocation, remove_unsuccessful, stop

        prepared, allocation = take(AllocatedJob, self.allocation).prepared, take(Allocation, self.allocation)
        job_id = prepared.job_id
        self._owners = owner_tokens(context)
        attaches = remove_unsuccessful(self.platform, job_id)
        try:
            with self.starting():
                launched = _attach(self, context, prepared, allocation)
        except AirflowTaskTerminated:
            # The launch may have created the job after `on_kill` looked for it.
            self._stop(job_id)
            raise
        except OtherJobError as error:
            # The running job differs from the job of this task, which must not stop it.
            raise AirflowFailException(str(error)) from error
        except Exception as error:
            # Airflow runs no teardown for a failed set-up task. A job that an earlier try started may continue until
            # the last try has failed.
            task = context["ti"]
            is_bad_input = isinstance(error, BAD_INPUT)
            if is_bad_input or task.try_number > task.max_tries or not attaches:
                stop(self.platform, job_id, "it could not be launched")
            if is_bad_input:
                raise AirflowFailException(str(error)) from error
            raise
        push_link(context, launched.run_url)
        self.log.info("job %s runs; MLflow run %s", launched.job_id, launched.run_url)
        return give(launched)

    def on_kill(self) -> None:
        """Stops the job that was started, also if an earlier try of this task still owns it: Airflow runs no teardown
        for a killed set-up task.

        Raises:
            AirflowTaskTerminated: a launch is under way.
        """
        from elastrec.operators.values import AllocatedJob

        if self._owners:
            self._stop(take(AllocatedJob, self.allocation).prepared.job_id)
        self.end()

    def _stop(self, job_id: str) -> None:
        for owner in self._owners:
            if _stop_owned(self, job_id, owner):
                return


class OfflinePhaseOperator(WaitingOperator, StartingTask):
    """Waits until the job has trained and evaluated, without a time limit.

    Retries, restarts of scheduler or triggerer and *clear* attach to the running job. A lost job (its node was lost,
    or a user stopped it) is launched again by the next try. If the task exceeds its `execution_timeout`, the job is
    stopped and the task fails; by default there is no timeout.

    Args:
        launched: output of `LaunchJobOperator`.

    Output: the fields of the job's last `TrainingMetrics`, and `launched` (see `TrainedJob`).
    """

    template_fields: Sequence[str] = (*ElastrecOperator.template_fields, "launched")

    def __init__(self, *, launched: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.launched = launched
        self._owner = ""
        self._trained: TrainingMetrics | None = None

    def execute(self, context: Context) -> Any:
        """Takes the job over and waits."""
        from elastrec.operators.values import LaunchedJob
        from elastrec.platform.jobs import remove_unsuccessful

        earlier = take(LaunchedJob, self.launched)
        task = context["ti"]
        push_link(context, earlier.run_url)
        self._owner = owner_token(context)
        if task.try_number > 1:
            remove_unsuccessful(self.platform, earlier.job_id)
        try:
            with self.starting():
                launched = _attach(self, context, earlier.prepared, earlier.allocation)
        except AirflowTaskTerminated:
            # As in LaunchJobOperator.
            _stop_owned(self, earlier.job_id, self._owner)
            raise
        # A job that is launched again after it failed has another run.
        push_link(context, launched.run_url)
        self.log.info("watching job %s as %s; MLflow run %s", launched.job_id, self._owner, launched.run_url)
        return self.wait_for(JobPhaseTrigger(**watched(self, context, launched.job_id, self._owner)), context)

    def resume(self, context: Context, event: Mapping[str, str]) -> dict[str, Any]:
        """Called with the trigger's event: returns the result, or fails with the last log lines of the pods."""
        from elastrec.operators.values import LaunchedJob, TrainedJob
        from elastrec.platform.jobs import failure_report, finish, result_of, stop

        job_id, outcome, reason = event["job_id"], event["outcome"], event["reason"]
        if outcome in ("succeeded", ENDED):
            # The master ends some minutes after its job, which may be before this task gets a slot.
            metrics = result_of(self.platform, take(LaunchedJob, self.launched).prepared)
            if outcome == ENDED and not metrics.phase.is_final:
                # The store did not take the result. Without the pod, the next try continues from the last record.
                finish(self.platform, job_id)
            outcome, reason = metrics.phase.value.lower(), metrics.reason
        if outcome == "succeeded":
            self._trained = metrics
            self.log.info(progress_line(metrics))
            # Not `model_dump`, which leaves a NaN as it is: databases of Airflow refuse it in JSON.
            figures = json.loads(metrics.model_dump_json())
            return {**figures, **give(TrainedJob(launched=take(LaunchedJob, self.launched)))}
        if outcome == TIMED_OUT:
            stop(self.platform, job_id, reason, owner=event["owner"])
            raise AirflowFailException(f"job {job_id} was stopped: {reason}")
        if outcome in ("failed", "stopped"):
            for line in failure_report(self.platform, job_id).splitlines():
                self.log.error(line)
            raise AirflowFailException(f"job {job_id} {outcome}: {reason}")
        raise AirflowException(f"job {job_id} is {outcome}: {reason}; the next try attaches to it or launches it again")

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any]:
        """Lineage from the log and the record with which the job began to the record with which it ended."""
        from elastrec.operators import lineage
        from elastrec.operators.values import LaunchedJob

        prepared, trained = take(LaunchedJob, self.launched).prepared, self._trained
        inputs = [lineage.training_rows(prepared)]
        if prepared.start_record:
            inputs.append(lineage.record_read(prepared.start_record))
        record = trained.checkpoint if trained else ""
        outputs = [lineage.record_written(record, trained.samples_trained)] if trained and record else []
        return lineage.lineage(inputs, outputs)

    def on_kill(self) -> None:
        """Stops the job; while the task is deferred the trigger does it.

        Raises:
            AirflowTaskTerminated: the job is being launched again.
        """
        from elastrec.operators.values import LaunchedJob

        if self._owner:
            _stop_owned(self, take(LaunchedJob, self.launched).job_id, self._owner)
        self.end()


def _data_interval(run: DagRunProtocol) -> tuple[datetime, datetime] | None:
    """Start and end of a run's data interval; None for a run without a logical date."""
    if run.data_interval_start is None or run.data_interval_end is None:
        return None
    return run.data_interval_start, run.data_interval_end


def _attach(operator: ElastrecOperator, context: Context, prepared: Prepared, allocation: Allocation) -> LaunchedJob:
    from elastrec.operators.values import LaunchedJob
    from elastrec.platform.jobs import launch

    tagged = msgspec.structs.replace(prepared, run_tags=prepared.run_tags | log_tag(context))
    launched = launch(operator.platform, tagged, allocation, owner=owner_token(context))
    if launched.goes_on_from:
        operator.log.info("continues from %s", launched.goes_on_words)
        if launched.adaptation:
            operator.log.info("%s", launched.adaptation)
    return extended(LaunchedJob, launched, prepared=prepared)


def _stop_owned(operator: ElastrecOperator, job_id: str, owner: str) -> bool:
    from elastrec.platform.jobs import stop

    return stop(operator.platform, job_id, f"the Airflow task {operator.task_id} was ended", owner=owner)
