"""What becomes of a request for another shape: looked at, taken back, and what it cost, by the request's id."""

from __future__ import annotations

from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.jobs.watching.masters import live_master
from elastrec.platform.jobs.watching.past import explanation
from elastrec.platform.specs.metrics import TrainingMetrics
from elastrec.platform.transport.messages.job import Done
from elastrec.platform.transport.messages.observer import (
    GetStatus,
    ShapeOutcome,
    ShapeRequest,
    Status,
    TakeBackShape,
)

_CALL_SECONDS = 15.0


def look_at_request(platform: Platform, job_id: str, request_id: str) -> tuple[ShapeRequest | None, str]:
    """The request as the master tells it now, None once the job is gone; and what the job waits for.

    Raises:
        ClusterError: the master does not answer.
    """
    with live_master(platform, job_id) as master:
        if master is None:
            return None, ""
        status = master.call(GetStatus(), Status, timeout_seconds=_CALL_SECONDS)
    # Several may be open at once: requests that name different things are reached together.
    request = next((each for each in status.shape_requests if each.request_id == request_id), None)
    if request is None:
        reason = "its master does not know it any more"
        request = ShapeRequest(request_id=request_id, wanted="", outcome=ShapeOutcome.SUPERSEDED, reason=reason)
    return request, TrainingMetrics.model_validate_json(status.metrics_json).reason


def take_back_request(platform: Platform, job_id: str, request_id: str) -> Done:
    """Gives the request up; `Done.reason` says why that is not possible any more.

    Raises:
        ClusterError: the master does not answer.
    """
    with live_master(platform, job_id) as master:
        if master is None:
            return Done(accepted=False, reason="the job has no master that runs")
        return master.call(TakeBackShape(request_id=request_id), Done, timeout_seconds=_CALL_SECONDS)


def pause_of(platform: Platform, job_id: str, request_id: str) -> float:
    """Seconds in which rows were handed over because of a request; 0 where none were.

    Raises:
        ClusterError: the master does not answer.
        CheckpointError: the job is over, and its store cannot be asked.
    """
    seen = explanation(platform, job_id).migrations
    return sum(each.pause_seconds or 0.0 for each in seen if request_id in each.requests)
