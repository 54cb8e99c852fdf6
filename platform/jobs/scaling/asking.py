"""Asks the master of a running job for another shape, as a person does; policies ask through `rounds`."""

from __future__ import annotations

import time
from collections.abc import Iterator

from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.jobs.watching.masters import live_master
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.shape import ShapeChange
from elastrec.platform.transport.messages.job import Done
from elastrec.platform.transport.messages.observer import (
    ChangeShape,
    GetStatus,
    ShapeAnswer,
    ShapeOutcome,
    ShapeRequest,
    Status,
    TakeBackShape,
)

_CALL_SECONDS = 15.0
_LOOK_SECONDS = 0.5


def ask_for_shape(
    platform: Platform, job_id: str, change: ShapeChange, *, live_only: bool, dry_run: bool = False
) -> ShapeAnswer:
    """The master's answer to a request for another shape.

    Args:
        live_only, dry_run: see ChangeShape.

    Raises:
        ClusterError: no master of the job runs, or it does not answer.
    """
    message = ChangeShape(change=dict(change), live_only=live_only, dry_run=dry_run, asked_by="elastrec scale")
    with live_master(platform, job_id) as master:
        if master is None:
            raise _not_running(job_id)
        return master.call(message, ShapeAnswer, timeout_seconds=_CALL_SECONDS, remember=True)


def take_back(platform: Platform, job_id: str) -> Done:
    """Gives the job's last request for a shape up; `Done.reason` says why that is not possible any more.

    Raises:
        ClusterError: as of `ask_for_shape`.
    """
    with live_master(platform, job_id) as master:
        if master is None:
            raise _not_running(job_id)
        request = master.call(GetStatus(), Status, timeout_seconds=_CALL_SECONDS).shape_request
        if request is None:
            return Done(accepted=False, reason=f"job {job_id} was not asked for another shape")
        return master.call(TakeBackShape(request_id=request.request_id), Done, timeout_seconds=_CALL_SECONDS)


def follow_request(platform: Platform, job_id: str, request_id: str) -> Iterator[ShapeRequest]:
    """The request as the master tells it, again and again until it has ended; nothing once the job is gone.

    Raises:
        ClusterError: the master does not answer.
    """
    while True:
        with live_master(platform, job_id) as master:
            if master is None:
                return
            request = master.call(GetStatus(), Status, timeout_seconds=_CALL_SECONDS).shape_request
        if request is None:
            return
        if request.request_id != request_id:
            yield ShapeRequest(
                request_id=request_id, wanted="", outcome=ShapeOutcome.SUPERSEDED, reason=f"by {request.request_id}"
            )
            return
        yield request
        if request.outcome is not ShapeOutcome.OPEN:
            return
        time.sleep(_LOOK_SECONDS)


def _not_running(job_id: str) -> ClusterError:
    return ClusterError(f"job {job_id} has no master that runs: only a running job has a shape; see `elastrec status`")
