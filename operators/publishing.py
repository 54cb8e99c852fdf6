"""Operators of the second half of a job's life: evaluate and gate, register, finish."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from airflow.sdk import Asset, AssetAlias
from airflow.sdk.exceptions import AirflowTaskTerminated

from elastrec.operators.base import (
    AirflowException,
    AirflowFailException,
    ElastrecOperator,
    StartingTask,
    WaitingOperator,
    extended,
    give,
    no_retry_for_bad_input,
    owner_token,
    take,
    watched,
)
from elastrec.operators.links import push_link
from elastrec.operators.triggers import TIMED_OUT, EvaluatorTrigger, TrackingTrigger
from elastrec.platform.specs.errors import ChampionChangedError, HistoryAwayError, JobNotFoundError
from elastrec.platform.specs.text import plain_words
from elastrec.platform.specs.text.uris import masked

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context
    from pydantic import JsonValue

    from elastrec.operators.values import LaunchedJob
    from elastrec.platform.jobs import Prepared, Registered


class _PublishingOperator(WaitingOperator):
    """An operator that needs MLflow, and waits if it is not reachable (`spec.history.publish_wait`)."""

    @abc.abstractmethod
    def launched_job(self) -> LaunchedJob:
        """The job, from the output of the previous task."""

    @abc.abstractmethod
    def publish(self, context: Context) -> Any:
        """The work of the task, done when MLflow answers."""

    def execute(self, context: Context) -> Any:
        """Waits for MLflow, then calls `publish`."""
        from elastrec.platform.jobs import publish_patience_seconds, tracking_answers

        if tracking_answers(self.platform):
            return self.publish(context)
        prepared = self.launched_job().prepared
        patience = publish_patience_seconds(prepared)
        server = masked(self.platform.tracking_uri)
        self.log.warning("MLflow at %s does not answer; waiting up to %.0f s", server, patience)
        trigger = TrackingTrigger(patience_seconds=patience, **self._watched(context, prepared))
        return self.wait_for(trigger, context, "tracking_is_back")

    def _watched(self, context: Context, prepared: Prepared) -> dict[str, Any]:
        """Arguments of a trigger that may stop the job: this try takes the job over from the previous task."""
        from elastrec.platform.jobs import take_over

        owner = owner_token(context)
        take_over(self.platform, prepared.job_id, owner)
        return watched(self, context, prepared.job_id, owner)

    def tracking_is_back(self, context: Context, event: Mapping[str, str]) -> Any:
        """Called with the trigger's event; fails without a retry if MLflow did not become reachable."""
        from elastrec.platform.jobs import away_message

        if event["outcome"] in ("away", TIMED_OUT):
            words = away_message(self.platform, self.launched_job().prepared)
            raise AirflowFailException(f"{words}. When MLflow is back, clear this task.")
        return self.execute(context)

    def _with_run(self, context: Context) -> LaunchedJob:
        """The job with its run in MLflow, which is created now if MLflow was not reachable at the launch."""
        from elastrec.platform.jobs import with_run

        job = self.launched_job()
        launched = with_run(self.platform, job.prepared, job)
        push_link(context, launched.run_url)
        return msgspec.structs.replace(job, run_id=launched.run_id, run_url=launched.run_url)


class EvaluateAndGateOperator(_PublishingOperator, StartingTask):
    """Exports the model, scores the champion on the same rows and applies the gate.

    A model that does not pass is still registered, without becoming champion; the task succeeds either way.

    Args:
        trained: output of `OfflinePhaseOperator`.

    Output: `JudgedJob`.
    """

    template_fields: Sequence[str] = (*ElastrecOperator.template_fields, "trained")

    def __init__(self, *, trained: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.trained = trained
        self._owner = ""

    def launched_job(self) -> LaunchedJob:
        """See _PublishingOperator."""
        from elastrec.operators.values import TrainedJob

        return take(TrainedJob, self.trained).launched

    def publish(self, context: Context) -> Any:
        """Starts the evaluator pod, or finds that of an earlier try, and waits."""
        from elastrec.platform.jobs import start_evaluator

        job = self._with_run(context)
        arguments = self._watched(context, job.prepared)
        self._owner = arguments["owner"]
        try:
            with self.starting(), no_retry_for_bad_input():
                start_evaluator(self.platform, job.prepared, job)
        except AirflowTaskTerminated:
            # The evaluator may have been created after `on_kill` looked for it.
            self._stop()
            raise
        return self.wait_for(EvaluatorTrigger(**arguments), context)

    def resume(self, context: Context, event: Mapping[str, str]) -> Any:
        """Called with the trigger's event: reads the evaluator's result and applies the gate.

        If another model has become champion meanwhile, the models are compared again.
        """
        from elastrec.operators.values import JudgedJob
        from elastrec.platform.jobs import EvaluatorState, gate_decision, stop

        if event["outcome"] == "unreachable":
            raise AirflowException(f"the cluster does not answer: {event['reason']}")
        if event["outcome"] == EvaluatorState.WITHOUT_HISTORY:
            raise AirflowException(
                "the evaluator lost MLflow; the next try waits for MLflow and starts another evaluator"
            )
        if event["outcome"] in (EvaluatorState.LOST, EvaluatorState.INTERRUPTED):
            words, *lines = event["reason"].splitlines()
            for line in lines:
                self.log.warning(line)
            raise AirflowException(f"the evaluator was {event['outcome']}; the next try starts another one: {words}")
        if event["outcome"] == TIMED_OUT:
            stop(self.platform, event["job_id"], event["reason"], owner=event["owner"])
            raise AirflowFailException(f"job {event['job_id']} was stopped: {event['reason']}")
        if event["outcome"] == "failed":
            for line in event["reason"].splitlines():
                self.log.error(line)
            raise AirflowFailException(f"the evaluator of job {event['job_id']} failed; its last log lines are above")
        job = self._with_run(context)
        with no_retry_for_bad_input():
            try:
                decision = gate_decision(self.platform, job.prepared, job)
            except ChampionChangedError as error:
                self.log.info("%s; comparing again", error)
                return self.publish(context)
        self.log.info("the model %s the gate: %s", "passed" if decision.passed else "did not pass", decision.reason)
        return give(extended(JudgedJob, decision, launched=job))

    def on_kill(self) -> None:
        """Stops the job with its evaluator; while the task is deferred the trigger does it.

        Raises:
            AirflowTaskTerminated: the evaluator is being started.
        """
        if self._owner:
            self._stop()
        self.end()

    def _stop(self) -> None:
        from elastrec.platform.jobs import stop

        job_id = self.launched_job().job_id
        stop(self.platform, job_id, f"the Airflow task {self.task_id} was ended", owner=self._owner)


class RegisterModelOperator(_PublishingOperator):
    """Registers the model; the alias `champion` moves to it when it passed the gate.

    Each asset among `outlets` gets an event with the version, and each asset alias the asset of the registered model:
    its name is `model/NAME`.

    Args:
        decision: output of `EvaluateAndGateOperator`.

    Output: `Registered`.
    """

    template_fields: Sequence[str] = (*ElastrecOperator.template_fields, "decision")

    def __init__(self, *, decision: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.decision = decision
        self._registered: Registered | None = None

    def launched_job(self) -> LaunchedJob:
        """See _PublishingOperator."""
        from elastrec.operators.values import JudgedJob

        return take(JudgedJob, self.decision).launched

    def publish(self, context: Context) -> dict[str, Any]:
        """Registers the model. Repeated calls register it only once."""
        from elastrec.platform.jobs import GateDecision, register

        job = self._with_run(context)
        registered = self._registered = register(self.platform, job.prepared, job, take(GateDecision, self.decision))
        self.log.info(
            "registered %s version %s%s",
            registered.name,
            registered.version,
            ", now the champion" if registered.is_champion else "",
        )
        if registered.note:
            self.log.warning("%s; to compare again, clear evaluate_and_gate", registered.note)
        self._announce(context, registered)
        return give(registered)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any]:
        """Lineage from the rows for training and evaluation to the model's version in the registry."""
        from elastrec.operators import lineage

        prepared = self.launched_job().prepared
        inputs = [lineage.training_rows(prepared), lineage.evaluation_rows(prepared)]
        registered = self._registered
        return lineage.lineage(inputs, [lineage.model(registered, self.platform.tracking_uri)] if registered else [])

    def _announce(self, context: Context, registered: Registered) -> None:
        about: dict[str, JsonValue] = {
            "name": registered.name,
            "version": registered.version,
            "is_champion": registered.is_champion,
            "model_uri": registered.model_uri,
        }
        for outlet in self.outlets:
            if isinstance(outlet, AssetAlias):
                context["outlet_events"][outlet].add(Asset(f"model/{registered.name}"), extra=about)
            elif isinstance(outlet, Asset):
                context["outlet_events"][outlet].extra = about


class FinishJobOperator(WaitingOperator):
    """Removes everything of the job from the cluster, whether the DAG run succeeded or not; a running job is stopped.

    Then it closes the job's run in MLflow; if MLflow does not answer, it waits for it (`spec.history.publish_wait`).

    Args:
        launched: output of `LaunchJobOperator`.
    """

    template_fields: Sequence[str] = (*ElastrecOperator.template_fields, "launched")

    def __init__(self, *, launched: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.launched = launched

    def execute(self, context: Context) -> None:
        """Idempotent."""
        from elastrec.operators.values import LaunchedJob
        from elastrec.platform.jobs import publish_patience_seconds

        try:
            self._finish(context)
        except HistoryAwayError as error:
            prepared = take(LaunchedJob, self.launched).prepared
            patience = publish_patience_seconds(prepared)
            self.log.warning("%s; waiting up to %.0f s for MLflow", error, patience)
            arguments = watched(self, context, prepared.job_id, owner_token(context))
            self.wait_for(TrackingTrigger(patience_seconds=patience, **arguments), context)

    def resume(self, context: Context, event: Mapping[str, str]) -> None:
        """Called with the trigger's event; fails without a retry if MLflow did not become reachable."""
        if event["outcome"] in ("away", TIMED_OUT):
            raise AirflowFailException(
                f"job {event['job_id']} is removed from the cluster, and its run in MLflow stays open, because MLflow "
                "does not answer. When MLflow is back, clear this task: it closes the run"
            )
        self._finish(context)

    def _finish(self, context: Context) -> None:
        from elastrec.operators.values import LaunchedJob
        from elastrec.platform.jobs import finish_job, is_trained, observe, stop

        launched = take(LaunchedJob, self.launched)
        if launched.run_url:
            push_link(context, launched.run_url)
        prepared, job_id = launched.prepared, launched.job_id
        try:
            phase = observe(self.platform, job_id).metrics.phase
        except JobNotFoundError:
            # Its evaluator may have been started later.
            finish_job(self.platform, prepared)
            self.log.info("job %s has already been removed", job_id)
            return
        if not phase.is_final and not is_trained(self.platform, prepared):
            stop(self.platform, job_id, "the DAG run ended before the job did")
        finish_job(self.platform, prepared)
        self.log.info("job %s %s and is removed from the cluster", job_id, plain_words.phase(phase))
