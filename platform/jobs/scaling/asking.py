"""Asks the master of a running job for another shape, as a person does; policies ask through `rounds`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.jobs.watching.masters import live_master
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.shape import ShapeChange
from elastrec.platform.transport.messages.job import Done
from elastrec.platform.transport.messages.observer import (
    REQUEST_TIMEOUT_SECONDS,
    ChangeShape,
    GetStatus,
    PodMove,
    ShapeAnswer,
    ShapeOutcome,
    ShapeRequest,
    Status,
    TakeBackShape,
)

_CALL_SECONDS = 15.0
_LOOK_SECONDS = 0.5


def ask_for_shape(
    platform: Platform,
    job_id: str,
    change: ShapeChange,
    *,
    moves: Sequence[PodMove] = (),
    live_only: bool,
    plan_id: str = "",
    asked_by: str = "elastrec scale",
    timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
    dry_run: bool = False,
) -> ShapeAnswer:
    """The master's answer to a request for another shape.

    Args:
        moves, live_only, plan_id, asked_by, timeout_seconds, dry_run: see ChangeShape.

    Raises:
        ClusterError: no master of the job runs, or it does not answer.
    """
    message = ChangeShape(
        change=dict(change),
        moves=list(moves),
        plan_id=plan_id,
        live_only=live_only,
        asked_by=asked_by,
        timeout_seconds=timeout_seconds,
        dry_run=dry_run,
    )
    with live_master(platform, job_id) as master:
        if master is None:
            raise _not_running(job_id)
        return master.call(message, ShapeAnswer, timeout_seconds=_CALL_SECONDS, remember=True)


def take_back(platform: Platform, job_id: str) -> Done:
    """Gives the job's last open request for a shape up; `Done.reason` says why that is not possible any more.

    Raises:
        ClusterError: as of `ask_for_shape`.
    """
    with live_master(platform, job_id) as master:
        if master is None:
            raise _not_running(job_id)
        told = master.call(GetStatus(), Status, timeout_seconds=_CALL_SECONDS).shape_requests
        if not told:
            return Done(accepted=False, reason=f"job {job_id} was not asked for another shape")
        still_open = [request for request in told if request.outcome is ShapeOutcome.OPEN]
        request = (still_open or told)[-1]
        return master.call(TakeBackShape(request_id=request.request_id), Done, timeout_seconds=_CALL_SECONDS)


def follow_request(platform: Platform, job_id: str, request_id: str) -> Iterator[ShapeRequest]:
    """The request as the master tells it, again and again until it has ended.

    Nothing comes once the job is gone, or where the request ended so long ago that the master has forgotten it.

    Raises:
        ClusterError: the master does not answer.
    """
    while True:
        with live_master(platform, job_id) as master:
            if master is None:
                return
            told = master.call(GetStatus(), Status, timeout_seconds=_CALL_SECONDS).shape_requests
        request = next((request for request in told if request.request_id == request_id), None)
        if request is None:
            return
        yield request
        if request.outcome is not ShapeOutcome.OPEN:
            return
        time.sleep(_LOOK_SECONDS)


def _not_running(job_id: str) -> ClusterError:
    return ClusterError(f"job {job_id} has no master that runs: only a running job has a shape; see `elastrec status`")
