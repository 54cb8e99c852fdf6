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
    take,
)
from elastrec.operators.links import push_link
from elastrec.operators.triggers import EvaluatorTrigger
from elastrec.platform.specs.errors import ClusterError

if TYPE_CHECKING:
    from airflow.sdk import Context

_LONGEST_EVALUATION = timedelta(hours=2)


class EvaluateAndGateOperator(ElastrecOperator):
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
        from elastrec.platform.jobs import Launched, Prepared, start_evaluator

        prepared, launched = take(Prepared, self.prepared), take(Launched, self.launched)
        task = context["ti"]
        push_link(context, launched.run_url)
        with no_retry_for_bad_input():
            start_evaluator(self.platform, prepared, launched)
        self.defer(
            trigger=EvaluatorTrigger(
                job_id=prepared.job_id,
                conn_id=self.elastrec_conn_id,
                owner=launched.owner,
                dag_id=task.dag_id,
                run_id=task.run_id,
                watched_task_id=task.task_id,
            ),
            method_name="resume",
            timeout=self.execution_timeout,
        )

    def resume(self, context: Context, event: Mapping[str, str]) -> dict[str, Any]:
        """Called with the trigger's event: reads the evaluator's result and decides."""
        from elastrec.platform.jobs import Launched, Prepared, gate_decision

        if event["outcome"] == "unreachable":
            raise AirflowException(f"the cluster does not answer: {event['reason']}")
        if event["outcome"] == "failed":
            for line in event["reason"].splitlines():
                self.log.error(line)
            raise AirflowFailException(f"the evaluator of job {event['job_id']} failed; its last lines stand above")
        with no_retry_for_bad_input():
            decision = gate_decision(self.platform, take(Prepared, self.prepared), take(Launched, self.launched))
        self.log.info("the model %s the gate: %s", "passed" if decision.passed else "did not pass", decision.reason)
        return give(decision)


class RegisterModelOperator(ElastrecOperator):
    """Registers the model; the alias `champion` moves to it when it passed the gate. Output: `Registered`."""

    template_fields: Sequence[str] = ("prepared", "launched", "decision")

    def __init__(self, *, prepared: Any, launched: Any, decision: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.prepared = prepared
        self.launched = launched
        self.decision = decision

    def execute(self, context: Context) -> dict[str, Any]:
        """Registers, once however often it is repeated."""
        from elastrec.platform.jobs import GateDecision, Launched, Prepared, register

        launched = take(Launched, self.launched)
        push_link(context, launched.run_url)
        registered = register(self.platform, take(Prepared, self.prepared), launched, take(GateDecision, self.decision))
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
        from elastrec.platform.jobs import Launched, Prepared, finish, observe, stop

        if self.launched:
            push_link(context, take(Launched, self.launched).run_url)
        job_id = take(Prepared, self.prepared).job_id
        try:
            phase = observe(self.platform, job_id).metrics.phase
        except ClusterError as error:
            if "not in the cluster" not in str(error):
                raise
            self.log.info("job %s is gone already", job_id)
            return
        if not phase.is_final:
            stop(self.platform, job_id, "the DAG run ended before the job did")
        finish(self.platform, job_id)
        self.log.info("job %s was %s and is removed from the cluster", job_id, phase.value)
