"""Steps after training: export the model, score the champion on the same rows, apply the gate, register.

The evaluator is a separate job that is submitted by a launcher, because it may run hours after the training job has
ended, when MLflow is reachable again or an Airflow task is cleared, and a master stays only for minutes. Everything
that it needs is in the checkpoint store.
"""

from __future__ import annotations

import time
from enum import StrEnum

import structlog

from elastrec.checkpoints import predictions_folder
from elastrec.checkpoints.commit import utc
from elastrec.platform.clusters.pods import EndCause, EndReason, PodPhase, PodSpec, PodStatus, RestartPolicy
from elastrec.platform.history import History, ModelRegistry
from elastrec.platform.history.model_registry import Champion
from elastrec.platform.jobs.ending.gate import decide
from elastrec.platform.jobs.ending.publishing import with_run, with_tracking
from elastrec.platform.jobs.ending.tracking import Announce, tracking_answers, warn
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.jobs.types import GateDecision, Launched, ModelScore, Prepared, Registered, Result
from elastrec.platform.jobs.watching.last_words import pod_last_words
from elastrec.platform.jobs.watching.masters import pod_of_master
from elastrec.platform.jobs.watching.past import result_of
from elastrec.platform.master.pods.launch import TEAM_LABEL, by_secrecy, evaluator_job, pod_name, pod_size
from elastrec.platform.specs import environment
from elastrec.platform.specs.errors import ChampionChangedError, HistoryError, JobFailedError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Phase, Role, TrainingMetrics
from elastrec.platform.specs.text import plain_words
from elastrec.platform.specs.text.loading import job_from_json
from elastrec.platform.transport.messages.export import (
    EXIT_HISTORY,
    EXPORT_FILE,
    EvaluationResult,
    ExportRequest,
    ExportResult,
    encode_request,
    parse_result,
)

log = structlog.get_logger(__name__)
CHAMPION_LABEL = "elastrec.io/champion"
"""Label of an evaluator's pod: the champion's version that it scores; empty if there was no champion."""
_REPLACED_EVALUATORS = 3


class EvaluatorState(StrEnum):
    """The state of the evaluator pod."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    WITHOUT_HISTORY = "without history"
    """It could not write to MLflow, and must be started again."""
    LOST = "lost"
    """The cluster has ended its pod, for example with its node, or does not know it; it must be started again."""
    INTERRUPTED = "interrupted"
    """It ended with an error that another one may not have, such as a full disk; it must be started again."""


def evaluator_pod(job: TrainingJob, request: ExportRequest) -> PodSpec:
    """The pod that builds and checks the model; the same for equal requests. It calls no pod and needs no token."""
    name = pod_name(request.job_id, Role.EVALUATOR)
    files, secrets = by_secrecy({EXPORT_FILE: encode_request(request)})
    return PodSpec(
        name=name,
        job=evaluator_job(request.job_id),
        role=Role.EVALUATOR,
        command=("python", "-m", "elastrec.trainers.export"),
        size=pod_size(job.spec.resources.evaluator),
        environment={environment.POD: name},
        files=files,
        secrets=secrets,
        restart_policy=RestartPolicy.NEVER,
        labels={
            "elastrec.io/role": "evaluator",
            TEAM_LABEL: job.metadata.team,
            CHAMPION_LABEL: request.champion_model_uri.rpartition("/")[2],
        },
    )


def start_evaluator(
    platform: Platform, prepared: Prepared, launched: Launched, *, with_master: bool | None = None
) -> None:
    """Submits the evaluator of a job that has succeeded, unless it exists.

    An evaluator is replaced if it failed because MLflow was not reachable or with an error that may not occur again, if
    the cluster has ended it, or if it has scored an earlier champion. If an earlier call has made the job's own model
    champion, it is compared with nothing.

    Args:
        with_master: whether the pod of the job's master was there when the caller began to publish the job; None: it
            begins now. If it has been removed since, somebody has stopped the job.

    Raises:
        JobFailedError: the job has not succeeded, has no final record, or was stopped.
        HistoryError: MLflow is away or refuses.
    """
    if with_master is None:
        with_master = pod_of_master(platform, prepared.job_id) is not None
    job = job_from_json(prepared.job_json)
    launched = with_run(platform, prepared, launched)
    champion = _champion(platform, job)
    is_own = _is_of(champion, launched.run_id)
    if (pod := platform.launcher.find(evaluator_job(prepared.job_id))) is not None:
        state, _ = evaluator_state(platform, prepared.job_id)
        is_outdated = state is EvaluatorState.DONE and not (is_own or _scores(pod, champion))
        if state in (EvaluatorState.RUNNING, EvaluatorState.FAILED, EvaluatorState.DONE) and not is_outdated:
            return
    metrics = result_of(platform, prepared)
    if metrics.phase is not Phase.SUCCEEDED or not metrics.checkpoint:
        raise JobFailedError(f"job {prepared.job_id} {plain_words.phase(metrics.phase)}: there is no model to export")
    store = job.spec.checkpoint.store
    request = ExportRequest(
        job_json=prepared.job_json,
        job_id=prepared.job_id,
        store_uri=store,
        record_uri=metrics.checkpoint,
        predictions_uri=predictions_folder(store, job.metadata.name, prepared.job_id),
        evaluation_manifest_uri=prepared.evaluation_manifest,
        tracking_uri=platform.tracking_uri,
        run_id=launched.run_id,
        champion_model_uri=champion.model_uri if champion and not is_own else "",
        registered_model=job.registered_model,
    )
    platform.launcher.submit(evaluator_pod(job, request))
    # After the submission: from now on, a stop finds the evaluator.
    if with_master and pod_of_master(platform, prepared.job_id) is None:
        platform.launcher.remove(evaluator_job(prepared.job_id))
        raise JobFailedError(
            f"job {prepared.job_id} was stopped before its model was evaluated. The model is trained and stored in "
            f"{metrics.checkpoint}; `elastrec resume {prepared.job_id}` publishes it"
        )
    log.info("evaluator_started", job_id=prepared.job_id, champion=request.champion_model_uri or "none")


def evaluator_state(platform: Platform, job_id: str) -> tuple[EvaluatorState, str]:
    """The state of the evaluator, and why it failed."""
    pod = platform.launcher.find(evaluator_job(job_id))
    if pod is None:
        return EvaluatorState.LOST, "the evaluator pod is gone"
    if pod.phase is PodPhase.SUCCEEDED:
        return EvaluatorState.DONE, ""
    if pod.phase is PodPhase.FAILED:
        state = EvaluatorState.FAILED
        if pod.end is not None and pod.end.cause is EndCause.CLUSTER:
            state = EvaluatorState.LOST
        elif pod.exit_code == EXIT_HISTORY:
            state = EvaluatorState.WITHOUT_HISTORY
        elif pod.end is EndReason.ERROR:
            state = EvaluatorState.INTERRUPTED
        return state, pod_last_words(platform, pod)
    return EvaluatorState.RUNNING, f"{pod.phase.value} {pod.reason} {pod.message}".strip()


def gate_decision(platform: Platform, prepared: Prepared, launched: Launched) -> GateDecision:
    """Reads the evaluator's result and applies the gate; the decision goes to MLflow.

    Raises:
        JobFailedError: the evaluator failed; the message holds its last lines.
        ChampionChangedError: another model has become champion since the evaluator was started.
        HistoryError: MLflow is away or refuses.
    """
    state, reason = evaluator_state(platform, prepared.job_id)
    if state is EvaluatorState.WITHOUT_HISTORY:
        raise HistoryError(f"the evaluator of job {prepared.job_id} could not write to MLflow: {reason}")
    if state is not EvaluatorState.DONE:
        raise JobFailedError(f"the evaluator of job {prepared.job_id} is {state.value}: {reason}")
    exported = _exported(platform, prepared.job_id)
    job = job_from_json(prepared.job_json)
    if exported.challenger is None:
        raise JobFailedError("the evaluator scored no rows; is the evaluation partition empty?")
    candidate = _score(exported.challenger)
    run_id = with_run(platform, prepared, launched).run_id
    champion = _champion(platform, job)
    if champion is not None and _is_of(champion, run_id):
        # An earlier call has made the model champion, and has written the comparison to MLflow.
        return GateDecision(
            passed=True,
            reason=champion.gate_reason or f"it is champion already, as version {champion.version}",
            candidate=candidate,
            champion_version=champion.version,
            model_uri=exported.model_uri,
            head=exported.head,
        )
    pod = platform.launcher.find(evaluator_job(prepared.job_id))
    if pod is not None and not _scores(pod, champion):
        scored = _version_words(pod.labels.get(CHAMPION_LABEL, ""))
        present = _version_words(champion.version if champion else "")
        raise ChampionChangedError(
            f"the model of job {prepared.job_id} was compared with {scored}, and the champion is {present} by now"
        )
    history = History(platform.tracking_uri, job.spec.history.experiment)
    decision = decide(
        job.spec.gate,
        candidate,
        _score(exported.champion) if exported.champion else None,
        champion_version=champion.version if champion else "",
        champion_problem=exported.champion_problem,
        later_data=_later_data(history, prepared, champion),
        model_uri=exported.model_uri,
        head=exported.head,
    )
    judged_against = champion.run_id if champion and exported.champion else ""
    history.log_gate(run_id, decision, judged_against)
    log.info("gate", job_id=prepared.job_id, passed=decision.passed, reason=decision.reason)
    return decision


def evaluate_and_gate(
    platform: Platform, prepared: Prepared, launched: Launched, announce: Announce = warn
) -> GateDecision:
    """`start_evaluator`, wait, `gate_decision`: for callers that may block. Waits while MLflow does not answer.

    An evaluator that the cluster has ended, or that had an error which may not occur again, is replaced, three times at
    most; so is one that had no MLflow, or no artifact store, if MLflow answers by then.

    Args:
        announce: called with progress lines while MLflow does not answer, or if an evaluator is replaced.

    Raises:
        HistoryAwayError: MLflow did not answer within `spec.history.publish_wait`.
    """

    losses, with_master = 0, pod_of_master(platform, prepared.job_id) is not None

    def is_replaced() -> bool:
        """Whether the evaluator is to be started again, and was not too often yet; a job that was stopped has none."""
        nonlocal losses
        state, reason = evaluator_state(platform, prepared.job_id)
        is_replaceable = state in (EvaluatorState.LOST, EvaluatorState.INTERRUPTED) or (
            # While MLflow does not answer, it is waited for instead.
            state is EvaluatorState.WITHOUT_HISTORY and tracking_answers(platform)
        )
        is_there = platform.launcher.find(evaluator_job(prepared.job_id)) is not None
        if not (is_replaceable and is_there) or losses == _REPLACED_EVALUATORS:
            return False
        losses += 1
        how = "had no MLflow" if state is EvaluatorState.WITHOUT_HISTORY else f"was {state.value}"
        announce(f"the evaluator {how}, starting another one: {reason.splitlines()[0]}")
        return True

    def once() -> GateDecision:
        while True:
            start_evaluator(platform, prepared, launched, with_master=with_master)
            while evaluator_state(platform, prepared.job_id)[0] is EvaluatorState.RUNNING:
                time.sleep(0.3)
            if is_replaced():
                continue
            try:
                return gate_decision(platform, prepared, launched)
            except ChampionChangedError as error:
                announce(f"{error}; comparing again")

    return with_tracking(platform, prepared, once, announce)


def register(platform: Platform, prepared: Prepared, launched: Launched, decision: GateDecision) -> Registered:
    """Registers the model as a new version; moves the alias `champion` to it if it has passed the gate. Idempotent.

    The alias is not moved if another model has become champion since the gate's comparison: of two jobs that end at
    the same time, or if the task of an earlier day is cleared.
    """
    launched = with_run(platform, prepared, launched)
    job = job_from_json(prepared.job_json)
    registry = _registry(platform, job)
    version = registry.register(job.registered_model, decision.model_uri, launched.run_id, decision)
    note = ""
    if decision.passed and (champion := registry.promote(job.registered_model, version, decision.champion_version)):
        note = (
            f"{_version_words(champion.version)} has become champion since this model was compared with "
            f"{_version_words(decision.champion_version)}, and stays champion"
        )
    log.info("model_registered", name=job.registered_model, version=version, champion=decision.passed and not note)
    return Registered(
        name=job.registered_model,
        version=version,
        is_champion=decision.passed and not note,
        model_uri=decision.model_uri,
        note=note,
    )


def result(
    prepared: Prepared, launched: Launched, metrics: TrainingMetrics, decision: GateDecision, registered: Registered
) -> Result:
    """The result of the job in one object.

    Args:
        metrics: its last ones, by `result_of` before the job was published: another process with the same key may
            publish it first, and remove the job and its result.
    """
    return Result(
        run_id=launched.run_id,
        model_uri=registered.model_uri,
        auc=metrics.auc if metrics.auc is not None else decision.candidate.auc,
        normalized_entropy=(
            metrics.normalized_entropy
            if metrics.normalized_entropy is not None
            else decision.candidate.normalized_entropy
        ),
        samples_total=metrics.samples_total,
        samples_trained=metrics.samples_trained,
        shards_total=metrics.shards_total,
        shards_done=metrics.shards_done,
        seconds=metrics.elapsed_seconds,
        pods=[pod.name for pod in metrics.pods],
        job_id=prepared.job_id,
        registered_model=registered.name,
        version=registered.version,
        is_champion=registered.is_champion,
        gate="; but ".join(text for text in (decision.reason, registered.note) if text),
        run_url=launched.run_url,
        log_loss=decision.candidate.log_loss,
    )


def _exported(platform: Platform, job_id: str) -> ExportResult:
    return parse_result("\n".join(platform.launcher.logs(pod_name(job_id, Role.EVALUATOR))))


def _score(result: EvaluationResult) -> ModelScore:
    return ModelScore(
        result.auc,
        result.normalized_entropy,
        result.samples,
        result.log_loss,
        normalized_error=result.normalized_error,
        only_label=result.only_label,
    )


def _champion(platform: Platform, job: TrainingJob) -> Champion | None:
    return _registry(platform, job).champion(job.registered_model)


def _later_data(history: History, prepared: Prepared, champion: Champion | None) -> str:
    """The end of the champion's training rows, if it is after that of the job's; empty if not, or if one is unknown."""
    end = history.trained_until(champion.run_id) if champion and prepared.interval.end else ""
    return end if utc(end) > utc(prepared.interval.end) else ""


def _is_of(champion: Champion | None, run_id: str) -> bool:
    """Whether the champion is the model of this run."""
    return champion is not None and champion.run_id == run_id


def _scores(evaluator: PodStatus, champion: Champion | None) -> bool:
    """Whether an evaluator has scored this champion."""
    return evaluator.labels.get(CHAMPION_LABEL, "") == (champion.version if champion else "")


def _version_words(version: str) -> str:
    return f"version {version}" if version else "no version"


def _registry(platform: Platform, job: TrainingJob) -> ModelRegistry:
    return ModelRegistry(platform.tracking_uri, job.spec.history.experiment)
