"""Starts, takes over, stops and finishes a job: the steps that change the cluster."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection

import msgspec
import structlog

from elastrec.checkpoints import Record, compare, concluded_term, newest_term
from elastrec.platform.clusters.pods import PodPhase, PodStatus
from elastrec.platform.history import History
from elastrec.platform.history.decisions import Decisions
from elastrec.platform.jobs.ending.left_runs import close_run_of_earlier_training, drop_points_of_earlier_training
from elastrec.platform.jobs.ending.tracking import tracking_answers, wait_for_tracking
from elastrec.platform.jobs.identity import new_job_secret
from elastrec.platform.jobs.starting.kept_launch import keep_launch, last_launch
from elastrec.platform.jobs.starting.named_settings import named_settings_note
from elastrec.platform.jobs.starting.preparation import allocated
from elastrec.platform.jobs.starting.same_job import JOB_LABEL, job_digest, refuse_other_job
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.jobs.types import Allocation, Launched, Prepared
from elastrec.platform.jobs.watching.job_pods import remove_job
from elastrec.platform.jobs.watching.last_words import ending_of, keep_log
from elastrec.platform.jobs.watching.masters import (
    Answer,
    ask_pod,
    is_gone,
    live_master,
    pod_of_master,
    wait_for_master,
)
from elastrec.platform.master.pods.launch import LaunchRequest, master_pod, pod_name
from elastrec.platform.master.service.resumption import Numbering, covered_rows, finished_on_other_rows, own_records
from elastrec.platform.specs.errors import CheckpointError, ClusterError, ElastrecError, HistoryError, TransportError
from elastrec.platform.specs.metrics import Phase, Role, TrainingMetrics
from elastrec.platform.specs.shape import Shape
from elastrec.platform.specs.text.loading import job_from_json
from elastrec.platform.specs.text.uris import masked
from elastrec.platform.transport.messages.job import Done
from elastrec.platform.transport.messages.ledger import Explanation, GetExplanation
from elastrec.platform.transport.messages.observer import FinishJob, GetStatus, NameRun, Status, StopJob, TakeOver
from elastrec.platform.transport.messages.profile import GetProfile, Profile

log = structlog.get_logger(__name__)
RUN_LABEL = "elastrec.io/run-id"
"""Label of a master's pod: the MLflow run of the job."""
_MASTER_END_SECONDS = 20.0
_ANSWER_SECONDS, _SILENT_SECONDS = 10.0, 0.5


class _EndingMaster:
    """The master of a job that is to end. After it has failed to answer once, timeouts of further calls are short."""

    def __init__(self, platform: Platform, job_id: str) -> None:
        self._platform, self._job_id = platform, job_id
        self.pod = pod_of_master(platform, job_id)
        self._seconds = _ANSWER_SECONDS

    def ask(self, message: msgspec.Struct, answer: type[Answer], consequence: str) -> Answer | None:
        """The master's answer; None if it does not answer, which is logged, or if no master runs in the pod."""
        try:
            return ask_pod(self._platform, self.pod, message, answer, timeout_seconds=self._seconds)
        except TransportError as error:
            self._seconds = _SILENT_SECONDS
            log.warning("master_unreachable", job_id=self._job_id, error=str(error), consequence=consequence)
            return None

    def end(self) -> None:
        """Waits until the process has ended or does not answer. A process that ends has written its last figures."""
        self.pod = pod_of_master(self._platform, self._job_id)
        answer = self.ask(FinishJob(), Done, "its pod is removed")
        deadline = time.monotonic() + (_MASTER_END_SECONDS if answer is not None and answer.accepted else 0.0)
        while time.monotonic() < deadline:
            pod = pod_of_master(self._platform, self._job_id)
            if pod is None or pod.phase.is_final:
                return
            time.sleep(0.1)


def launch_request(
    prepared: Prepared,
    allocation: Allocation,
    earlier_terms: int | None = None,
    named_fields: Collection[str] = (),
) -> LaunchRequest:
    """The launch parameters of the job's master, without its run in MLflow.

    Args:
        earlier_terms: terms up to this number belong to finished runs; None: to runs whose model was published, or to
            all runs if the newest one was trained to its end on other rows, or with `spec.continual.resume: never`.
        named_fields: fields of the job file, by dotted path, that the caller has named for this launch. Their values
            replace what the job has reached since the launch before.

    Raises:
        CheckpointError: the store could not be asked which runs of the job are over.
    """
    in_file = job_from_json(prepared.job_json)
    job = allocated(in_file, allocation)
    job_place = (job.spec.checkpoint.store, job.metadata.name, prepared.job_id)
    before = newest_term(*job_place) if named_fields else None
    request = LaunchRequest.of(
        job,
        job_id=prepared.job_id,
        training_manifest=prepared.training_manifest,
        training_rows=prepared.training_rows,
        evaluation_manifest=prepared.evaluation_manifest,
        evaluation_rows=prepared.evaluation_rows,
        store=job.spec.checkpoint.store,
        training_digest=prepared.training_digest,
        earlier_terms=concluded_term(*job_place) if earlier_terms is None else earlier_terms,
        start_record=prepared.start_record,
        older_start_records=prepared.older_start_records,
        start_positions=prepared.start_positions,
        data_interval=(prepared.interval.start, prepared.interval.end),
        named_sizes=Shape.of(in_file.spec.resources),
        named_fields=sorted(named_fields),
        named_after_term=before.term if before is not None else 0,
    )
    if earlier_terms is not None:
        return request
    begins_anew = job.spec.continual.resume == "never"
    if not begins_anew and (record := finished_on_other_rows(request)):
        log.info("job_begins_anew", job_id=prepared.job_id, trained_on_other_rows=record.uri)
        begins_anew = True
    if begins_anew and (newest := newest_term(*job_place)) is not None:
        return msgspec.structs.replace(request, earlier_terms=newest.term)
    return request


def launch(
    platform: Platform,
    prepared: Prepared,
    allocation: Allocation,
    owner: str = "",
    earlier_terms: int | None = None,
    named_fields: Collection[str] = (),
) -> Launched:
    """Creates the job's master, or takes over the job that already exists under this id. Never creates a second one.

    A job whose master has ended after the job is left as it is: `result_of` has its result.

    If MLflow does not answer, this waits for `spec.history.launch_wait` and then continues without a run, which
    `publishing.with_run` creates later. A job with records continues from the newest one.

    Args:
        owner: who may stop the job with `stop(owner=...)`; a later launch with another owner takes it over.
        earlier_terms, named_fields: as in `launch_request`.

    Raises:
        OtherJobError: the job that exists under this id has another job file, or other sizes, another batch size or
            other learning rates than `named_fields` names, which its launch did not name; it is not changed.
        SpecError: the positions in the job's records are not valid for this launch.
        HistoryError: MLflow answers and refuses.
        ClusterError: the cluster refused the pod, or the master did not start.
        CheckpointError: the store does not answer, or refused to store the parameters of the launch, or those of the
            job that exists cannot be read.
    """
    name = pod_name(prepared.job_id, Role.MASTER)
    names = job_from_json(prepared.job_json).spec.history
    existing = pod_of_master(platform, prepared.job_id)
    record, owner_to_name, changed_since = None, owner, ""
    if existing is not None:
        kept = last_launch(prepared)
        refuse_other_job(existing, prepared, kept)
        changed_since = named_settings_note(platform, existing, prepared, kept, named_fields)
        training = None if kept is None else kept.earlier_terms
        if owner and not is_gone(existing):
            # Before the wait for MLflow: a caller that is ended meanwhile must be able to stop the job.
            _direct_master(platform, prepared.job_id, owner, existing, "")
            owner_to_name = ""
    else:
        # Checked before a run is created, so that a refused launch leaves no run.
        request = launch_request(prepared, allocation, earlier_terms, named_fields)
        record = next(iter(own_records(request, 1)), None)
        training = request.earlier_terms
    history = History(platform.tracking_uri, names.experiment, platform.ui_url)
    begins = existing is None and record is None
    try:
        run_id = _start_run(
            platform, history, prepared, allocation, names.launch_wait, begins=begins, earlier_terms=training
        )
        if existing is None:
            request = msgspec.structs.replace(request, run_id=run_id, tracking_uri=platform.tracking_uri)
            keep_launch(request.store, prepared, allocation, request.earlier_terms, named_fields)
            secret = new_job_secret(platform, prepared.job_id)
            pod = master_pod(request, platform.cluster_config, secret.token, secret.tls)
            labels = {**pod.labels, RUN_LABEL: run_id, JOB_LABEL: job_digest(prepared)}
            created = platform.launcher.submit(msgspec.structs.replace(pod, labels=labels))
            if not run_id or created.labels.get(RUN_LABEL, "") != run_id:
                # Another caller may have created it at the same time, with another run and another secret.
                refuse_other_job(created, prepared, last_launch(prepared))
            existing = None if created.labels.get(RUN_LABEL, "") == run_id else created
    except ElastrecError as error:
        _close_run_without_job(platform, history, prepared.job_id, error)
        raise
    if existing is None:
        goes_on_from = record.uri if record else "nothing"
        log.info("job_launched", job_id=prepared.job_id, run_id=run_id, owner=owner, goes_on_from=goes_on_from)
    else:
        log.info("job_reattached", job_id=prepared.job_id, run_id=run_id, owner=owner, phase=existing.phase)
    if existing is None or not is_gone(existing):
        _direct_master(platform, prepared.job_id, owner_to_name, existing, run_id)
    at, of = _position(record, request) if record and existing is None else (0, 0)
    return Launched(
        job_id=prepared.job_id,
        master_pod=name,
        run_id=run_id,
        run_url=history.run_url(run_id) if run_id else "",
        owner=owner,
        allocation=allocation,
        goes_on_from=record.uri if record and existing is None else "",
        goes_on_at=at,
        goes_on_of=of,
        adaptation=_adaptation(record, request) if record and existing is None else "",
        changed_since=changed_since,
    )


def _position(record: Record, request: LaunchRequest) -> tuple[int, int]:
    """Samples in the record's model, and all samples; 0 and 0 if unknown."""
    numbering = Numbering.of(request)
    try:
        return covered_rows(record, numbering), numbering.splits.total_rows
    except CheckpointError as error:
        # The master, which has been launched, says from which record it continues instead.
        log.warning("position_unknown", record=record.uri, reason=str(error))
        return 0, 0


def _adaptation(record: Record, request: LaunchRequest) -> str:
    adaptation = compare(record.manifest.model, request.training_job)
    return "" if adaptation.is_exact else str(adaptation)


def _direct_master(platform: Platform, job_id: str, owner: str, existing: PodStatus | None, run_id: str) -> None:
    """Waits for the job's master, and tells it its owner and, if it existed with another one, its run in MLflow."""
    with contextlib.closing(wait_for_master(platform, job_id)) as client:
        try:
            if owner:
                client.call(TakeOver(owner=owner), Done, timeout_seconds=15)
            if run_id and existing is not None and existing.labels.get(RUN_LABEL, "") != run_id:
                client.call(NameRun(run_id=run_id), Done, timeout_seconds=15)
        except TransportError:
            # If the master has failed meanwhile, its log has a better reason.
            wait_for_master(platform, job_id, timeout_seconds=0.0).close()
            raise


def _start_run(
    platform: Platform,
    history: History,
    prepared: Prepared,
    allocation: Allocation,
    patience_seconds: float,
    *,
    begins: bool,
    earlier_terms: int | None,
) -> str:
    if wait_for_tracking(platform, patience_seconds):
        try:
            # Another caller may have launched the job during the wait.
            begins = begins and pod_of_master(platform, prepared.job_id) is None
            if begins:
                _close_run_of_earlier_training(platform, history, prepared)
            return history.start_run(prepared, allocation, begins=begins, earlier_terms=earlier_terms)
        except HistoryError as error:
            if tracking_answers(platform):
                raise
            log.warning("history_went_away", job_id=prepared.job_id, error=str(error))
    if begins and pod_of_master(platform, prepared.job_id) is None:
        drop_points_of_earlier_training(prepared)
    log.warning(
        "launched_without_run",
        job_id=prepared.job_id,
        tracking_uri=masked(platform.tracking_uri),
        waited_seconds=patience_seconds,
        consequence="its figures are delivered when MLflow is back",
    )
    return ""


def _close_run_of_earlier_training(platform: Platform, history: History, prepared: Prepared) -> None:
    try:
        close_run_of_earlier_training(platform, history, prepared)
    except HistoryError as error:
        # The new training has a run of its own in any case.
        log.warning("run_of_earlier_training_not_closed", job_id=prepared.job_id, error=str(error))


def _close_run_without_job(platform: Platform, history: History, job_id: str, error: ElastrecError) -> None:
    """Closes the run of a job that was not launched; nobody else would, because no pod has its id."""
    try:
        if (
            tracking_answers(platform)
            and pod_of_master(platform, job_id) is None
            and (run_id := history.open_run(job_id))
        ):
            history.finish_run(run_id, Phase.FAILED, f"the job could not be launched: {error}")
    except (ClusterError, HistoryError) as refused:
        log.warning("run_not_closed", job_id=job_id, phase=Phase.FAILED.value, error=str(refused))


def job_page(platform: Platform, prepared: Prepared) -> str:
    """Page of MLflow that will show the job's run; empty if no server shows MLflow's pages."""
    if not tracking_answers(platform):
        return ""
    experiment = job_from_json(prepared.job_json).spec.history.experiment
    return History(platform.tracking_uri, experiment, platform.ui_url).job_url(prepared.job_id)


def take_over(platform: Platform, job_id: str, owner: str) -> None:
    """Makes `owner` the only one who may stop the job with `stop(owner=...)`. Has no effect after the master has ended.

    Raises:
        ClusterError: the cluster or the master does not answer.
    """
    with live_master(platform, job_id) as master:
        if master is not None:
            master.call(TakeOver(owner=owner), Done, timeout_seconds=15)


def stop(platform: Platform, job_id: str, reason: str, owner: str = "") -> bool:
    """Stops a job and removes its pods. Returns False if it belongs to another owner or has ended.

    If the master does not answer, its pod is deleted, and then the other pods.
    """
    master = _EndingMaster(platform, job_id)
    pod = master.pod
    answer = master.ask(StopJob(reason=reason, owner=owner), Done, "its pods are removed")
    if answer is None and pod is not None and pod.phase is PodPhase.RUNNING and (uri := keep_log(platform, pod)):
        log.warning("log_of_silent_master_kept", job_id=job_id, uri=uri)
    if answer is not None and not answer.accepted:
        log.info("stop_refused", job_id=job_id, owner=owner, reason=answer.reason)
        return False
    # A job that has ended by itself keeps its outcome.
    ended, why, run_id = _ending(platform, master)
    explained, measured = _explained(master), _measured(master)
    master.end()
    removed = remove_job(platform, job_id)
    if removed:
        log.info("job_stopped", job_id=job_id, reason=reason, pods=removed, phase=ended.value)
    if pod is not None:
        _close_run(platform, run_id, ended, reason if ended is Phase.STOPPED else why, explained, measured)
    # The launching process may have seen the job's end first, and removed the pods.
    return answer is not None or bool(removed)


def finish(platform: Platform, job_id: str) -> bool:
    """Ends a job whose result was read: ends its master, deletes the remaining pods, closes its MLflow run. Idempotent.

    Returns False if the run stays open, because MLflow does not answer.
    """
    master = _EndingMaster(platform, job_id)
    pod = master.pod
    phase, failure, run_id = _ending(platform, master)
    explained, measured = _explained(master), _measured(master)
    master.end()
    remove_job(platform, job_id)
    return pod is None or _close_run(platform, run_id, phase, failure, explained, measured)


def _ending(platform: Platform, master: _EndingMaster) -> tuple[Phase, str, str]:
    """The outcome of the job, its reason, and its MLflow run; Stopped if the job has not ended by itself."""
    pod = master.pod
    if pod is None:
        return Phase.STOPPED, "the master is gone", ""
    run_id = pod.labels.get(RUN_LABEL, "")
    if pod.phase is PodPhase.FAILED:
        return Phase.FAILED, f"the master failed: {ending_of(platform, pod)}", run_id
    status = master.ask(GetStatus(), Status, "its pods are removed")
    if status is not None:
        phase = TrainingMetrics.model_validate_json(status.metrics_json).phase
        run_id = run_id or status.run_id
        if phase.is_final:
            return phase, status.failure, run_id
    return Phase.STOPPED, "the master was gone before the result was read", run_id


def _explained(master: _EndingMaster) -> Explanation | None:
    """Events of the job and where its time went; None if the master does not answer any more."""
    return master.ask(GetExplanation(), Explanation, "the job is not explained")


def _measured(master: _EndingMaster) -> Profile | None:
    """Measured speeds of the job; None if the master does not answer any more."""
    return master.ask(GetProfile(), Profile, "later jobs do not learn from its speed")


def _close_run(
    platform: Platform, run_id: str, phase: Phase, reason: str, explained: Explanation | None, measured: Profile | None
) -> bool:
    """Returns False if the run stays open, because MLflow does not answer."""
    if not run_id:
        return True
    error = "it does not answer"
    history = History(platform.tracking_uri, "", platform.ui_url)
    if tracking_answers(platform):
        try:
            run_id = history.present_run(run_id) or run_id
            decisions = Decisions(platform.tracking_uri, "")
            if measured is not None and any(each.steps for each in measured.measured):
                # Imported here, because it loads scipy, which a launch does not need.
                from elastrec.platform.jobs.scaling.story import fitted

                if (model := fitted(measured)) is not None:
                    decisions.log_coefficients(run_id, model.coefficients, model.shape.dense_bytes)
            if explained is not None and explained.own_plans:
                from elastrec.platform.jobs.scaling.story import write_own_plans

                write_own_plans(decisions, run_id, explained.own_plans)
            if taken := decisions.decisions(run_id):
                # The picture includes the time after the last round.
                decisions.log_throughput(run_id, taken)
                decisions.log_memory(run_id, taken)
        except HistoryError as refused:
            log.warning("scaling_not_drawn", run_id=run_id, error=str(refused))
        from elastrec.platform.jobs.watching.story import story_of

        story = None if explained is None else story_of(explained)
        try:
            history.finish_run(run_id, phase, reason, story=story)
            return True
        except HistoryError as refused:
            error = str(refused)
    # The job has ended in any case; the run stays open, which is logged.
    log.warning("run_not_closed", run_id=run_id, phase=phase.value, error=error)
    return tracking_answers(platform)
