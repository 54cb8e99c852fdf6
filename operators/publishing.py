"""Operators of the second half of a job's life: evaluate and gate, register, finish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from elastrec.operators.base import (
    AirflowException,
    AirflowFailException,
    ElastrecOperator,
    give,
    no_retry_for_bad_input,
    owner_token,
    take,
    watched,
)
from elastrec.operators.links import push_link
from elastrec.operators.triggers import EvaluatorTrigger, TrackingTrigger
from elastrec.platform.specs.errors import JobNotFoundError
from elastrec.platform.specs.uris import masked

if TYPE_CHECKING:
    from airflow.sdk import Context

    from elastrec.platform.jobs import Launched, Prepared

_LONGEST_EVALUATION = timedelta(hours=2)


class _PublishingOperator(ElastrecOperator):
    """An operator that needs MLflow, and waits for it, deferred, while it is away (`spec.history.publish_wait`)."""

    prepared: Any
    launched: Any

    def _wait_for_tracking(self, context: Context) -> None:
        """Defers when MLflow does not answer; `tracking_is_back` then begins the try anew."""
        from elastrec.platform.jobs import Prepared, publish_patience_seconds, tracking_answers

        if tracking_answers(self.platform):
            return
        prepared = take(Prepared, self.prepared)
        patience = publish_patience_seconds(prepared)
        server = masked(self.platform.tracking_uri)
        self.log.warning("MLflow at %s does not answer; waiting up to %.0f s", server, patience)
        self.defer(
            trigger=TrackingTrigger(patience_seconds=patience, **self._watched(context, prepared)),
            method_name="tracking_is_back",
        )

    def _watched(self, context: Context, prepared: Prepared) -> dict[str, Any]:
        """Arguments of a trigger that may stop the job: this try takes it over from the task before it."""
        from elastrec.platform.jobs import take_over

        owner = owner_token(context)
        take_over(self.platform, prepared.job_id, owner)
        return watched(self, context, prepared.job_id, owner)

    def tracking_is_back(self, context: Context, event: Mapping[str, str]) -> Any:
        """Called with the trigger's event; fails, without another try, when MLflow stayed away."""
        from elastrec.platform.jobs import Prepared, away_message

        if event["outcome"] == "away":
            words = away_message(self.platform, take(Prepared, self.prepared))
            raise AirflowFailException(f"{words}. When MLflow is back, clear this task.")
        return self.execute(context)

    def _with_run(self, context: Context) -> tuple[Prepared, Launched]:
        """The job with its run in MLflow, which is made now when MLflow was away at the launch."""
        from elastrec.platform.jobs import Launched, Prepared, with_run

        prepared = take(Prepared, self.prepared)
        launched = with_run(self.platform, prepared, take(Launched, self.launched))
        push_link(context, launched.run_url)
        return prepared, launched


class EvaluateAndGateOperator(_PublishingOperator):
    """Exports the model, scores the champion on the same rows and applies the gate. Output: `GateDecision`.

    A model that does not pass is still registered, without becoming champion; the task succeeds either way.
    """

    template_fields: Sequence[str] = ("prepared", "launched")

    def __init__(self, *, prepared: Any, launched: Any, **kwargs: Any) -> None:
        super().__init__(execution_timeout=kwargs.pop("execution_timeout", _LONGEST_EVALUATION), **kwargs)
        self.prepared = prepared
        self.launched = launched

    def execute(self, context: Context) -> None:
        """Starts the evaluator pod, or finds the one of an earlier try, and defers."""
        from elastrec.platform.jobs import start_evaluator

        self._wait_for_tracking(context)
        prepared, launched = self._with_run(context)
        with no_retry_for_bad_input():
            start_evaluator(self.platform, prepared, launched)
        self.defer(
            trigger=EvaluatorTrigger(**self._watched(context, prepared)),
            method_name="resume",
            timeout=self.execution_timeout,
        )

    def resume(self, context: Context, event: Mapping[str, str]) -> dict[str, Any]:
        """Called with the trigger's event: reads the evaluator's result and decides."""
        from elastrec.platform.jobs import EvaluatorState, gate_decision

        if event["outcome"] == "unreachable":
            raise AirflowException(f"the cluster does not answer: {event['reason']}")
        if event["outcome"] == EvaluatorState.WITHOUT_HISTORY:
            raise AirflowException("MLflow went away from the evaluator; the next try waits for it and starts another")
        if event["outcome"] == "failed":
            for line in event["reason"].splitlines():
                self.log.error(line)
            raise AirflowFailException(f"the evaluator of job {event['job_id']} failed; its last lines stand above")
        with no_retry_for_bad_input():
            decision = gate_decision(self.platform, *self._with_run(context))
        self.log.info("the model %s the gate: %s", "passed" if decision.passed else "did not pass", decision.reason)
        return give(decision)


class RegisterModelOperator(_PublishingOperator):
    """Registers the model; the alias `champion` moves to it when it passed the gate. Output: `Registered`."""

    template_fields: Sequence[str] = ("prepared", "launched", "decision")

    def __init__(self, *, prepared: Any, launched: Any, decision: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.prepared = prepared
        self.launched = launched
        self.decision = decision

    def execute(self, context: Context) -> dict[str, Any]:
        """Registers, once however often it is repeated."""
        from elastrec.platform.jobs import GateDecision, register

        self._wait_for_tracking(context)
        prepared, launched = self._with_run(context)
        registered = register(self.platform, prepared, launched, take(GateDecision, self.decision))
        self.log.info(
            "registered %s version %s%s",
            registered.name,
            registered.version,
            ", now the champion" if registered.is_champion else "",
        )
        return give(registered)


class FinishJobOperator(ElastrecOperator):
    """Removes everything of the job from the cluster, however the DAG run went; a job that still runs is stopped."""

    template_fields: Sequence[str] = ("prepared", "launched")

    def __init__(self, *, prepared: Any, launched: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.prepared = prepared
        self.launched = launched

    def execute(self, context: Context) -> None:
        """Idempotent."""
        from elastrec.platform.jobs import Launched, Prepared, finish_job, is_trained, observe, stop

        if self.launched and (url := take(Launched, self.launched).run_url):
            push_link(context, url)
        prepared = take(Prepared, self.prepared)
        job_id = prepared.job_id
        try:
            phase = observe(self.platform, job_id).metrics.phase
        except JobNotFoundError:
            # Its evaluator may have come later.
            finish_job(self.platform, prepared)
            self.log.info("job %s is gone already", job_id)
            return
        if not phase.is_final and not is_trained(self.platform, prepared):
            stop(self.platform, job_id, "the DAG run ended before the job did")
        finish_job(self.platform, prepared)
        self.log.info("job %s was %s and is removed from the cluster", job_id, phase.value)
