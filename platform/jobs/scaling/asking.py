"""Asks the master of a running job for another shape and follows the request; policies ask through `rounds`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.jobs.watching.masters import live_master
from elastrec.platform.jobs.watching.past import explanation
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.metrics import TrainingMetrics
from elastrec.platform.specs.shape import ShapeChange
from elastrec.platform.transport.messages.job import Done
from elastrec.platform.transport.messages.observer import (
    REQUEST_TIMEOUT_SECONDS,
    CancelShape,
    ChangeShape,
    GetStatus,
    PodMove,
    ShapeAnswer,
    ShapeOutcome,
    ShapeRequest,
    Status,
)

_CALL_SECONDS = 15.0
_LOOK_SECONDS = 0.5


def ask_for_shape(
    platform: Platform,
    job_id: str,
    change: ShapeChange,
    *,
    moves: Sequence[PodMove] = (),
    plan_id: str = "",
    asked_by: str = "elastrec scale",
    timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
    dry_run: bool = False,
) -> ShapeAnswer:
    """The master's answer to a request for another shape.

    Args:
        moves, plan_id, asked_by, timeout_seconds, dry_run: see ChangeShape.

    Raises:
        ClusterError: no master of the job runs, or it does not answer.
    """
    message = ChangeShape(
        change=dict(change),
        moves=list(moves),
        plan_id=plan_id,
        asked_by=asked_by,
        timeout_seconds=timeout_seconds,
        dry_run=dry_run,
    )
    with live_master(platform, job_id) as master:
        if master is None:
            raise _not_running(job_id)
        return master.call(message, ShapeAnswer, timeout_seconds=_CALL_SECONDS, remember=True)


def last_request(platform: Platform, job_id: str) -> ShapeRequest | None:
    """The job's last request for a shape, an open one if there is one; None: it was not asked for another shape.

    Raises:
        ClusterError: as of `ask_for_shape`.
    """
    status = _status(platform, job_id)
    if status is None:
        raise _not_running(job_id)
    still_open = [request for request in status.shape_requests if request.outcome is ShapeOutcome.OPEN]
    return next(reversed(still_open or status.shape_requests), None)


def cancel_request(platform: Platform, job_id: str, request_id: str, *, frees_plan: bool = False) -> Done:
    """Cancels one request; `Done.reason` is empty if that was possible.

    Args:
        frees_plan: see CancelShape.

    Raises:
        ClusterError: the master does not answer.
    """
    with live_master(platform, job_id) as master:
        if master is None:
            return Done(accepted=False, reason="the job has no master that runs")
        message = CancelShape(request_id=request_id, frees_plan=frees_plan)
        return master.call(message, Done, timeout_seconds=_CALL_SECONDS)


def follow_request(platform: Platform, job_id: str, request_id: str) -> Iterator[ShapeRequest]:
    """The request as the master reports it, twice a second until it has ended.

    Nothing comes once the job is gone, or where the request ended so long ago that the master has forgotten it.

    Raises:
        ClusterError: the master does not answer.
    """
    while (status := _status(platform, job_id)) is not None:
        request = _named(status, request_id)
        if request is None:
            return
        yield request
        if request.outcome is not ShapeOutcome.OPEN:
            return
        time.sleep(_LOOK_SECONDS)


def look_at_request(platform: Platform, job_id: str, request_id: str) -> tuple[ShapeRequest | None, str]:
    """The request as the master reports it now, None once the job is gone; and what the job waits for.

    Raises:
        ClusterError: the master does not answer.
    """
    status = _status(platform, job_id)
    if status is None:
        return None, ""
    request = _named(status, request_id)
    if request is None:
        reason = "its master does not know it any more"
        request = ShapeRequest(request_id=request_id, wanted="", outcome=ShapeOutcome.SUPERSEDED, reason=reason)
    return request, TrainingMetrics.model_validate_json(status.metrics_json).reason


def request_of_plan(platform: Platform, job_id: str, plan_id: str) -> str:
    """The id of the request that the job's master has accepted for a plan; empty if it knows none.

    Raises:
        ClusterError: the master does not answer.
    """
    status = _status(platform, job_id)
    known = [] if status is None else [each.request_id for each in status.shape_requests if each.plan_id == plan_id]
    return known[-1] if known else ""


def pause_of(platform: Platform, job_id: str, request_id: str) -> float:
    """Seconds in which rows were handed over because of a request; 0 where none were.

    Raises:
        ClusterError: the master does not answer.
        CheckpointError: the job is over, and its store cannot be asked.
    """
    seen = explanation(platform, job_id).migrations
    return sum(each.pause_seconds or 0.0 for each in seen if request_id in each.requests)


def _status(platform: Platform, job_id: str) -> Status | None:
    """None: the job has no master that runs."""
    with live_master(platform, job_id) as master:
        return None if master is None else master.call(GetStatus(), Status, timeout_seconds=_CALL_SECONDS)


def _named(status: Status, request_id: str) -> ShapeRequest | None:
    """One of the requests; several may be open at once: those that name different things are reached together."""
    return next((request for request in status.shape_requests if request.request_id == request_id), None)


def _not_running(job_id: str) -> ClusterError:
    return ClusterError(f"job {job_id} has no master that runs: only a running job has a shape; see `elastrec status`")
