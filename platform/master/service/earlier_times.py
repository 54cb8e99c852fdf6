"""The time of a job's earlier masters, for the master that continues from one of its records.

A record has the time until its cut. What followed is known if the earlier master has ended by itself and left its
explanation; of one that was killed, it is not.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import structlog

from elastrec.platform.master.measuring.time_profile import REDOING, TRAINING, WAITING, TimeProfile
from elastrec.platform.master.pods.launch import LaunchRequest
from elastrec.platform.specs.errors import CheckpointError

log = structlog.get_logger(__name__)
ATTRIBUTE = "times"
"""Attribute of a record's manifest: seconds of the job until the record's cut, by part."""


def attribute(times: Mapping[str, float]) -> dict[str, str]:
    """For the manifest of a record."""
    return {ATTRIBUTE: msgspec.json.encode(times).decode()}


def earlier_times(
    request: LaunchRequest, times: dict[str, float] | None, *, has_ended: bool
) -> dict[str, float] | None:
    """Seconds of earlier masters by part; None: unknown.

    Training after the record is lost work, because it has to be done again.

    Args:
        times: until the record; None: it does not say it, as those of earlier versions.
        has_ended: whether an earlier master of this run of the job has ended by itself.
    """
    if times is None or not has_ended:
        return times
    # Imported here, because launches import the resumption, and do not need a journal.
    from elastrec.platform.master.reporting.explanation import read_explanation

    try:
        story = read_explanation(request.store, request.job_id)
    except CheckpointError as error:
        log.warning("earlier_explanation_not_read", job=request.job_id, reason=str(error))
        return times
    # The explanation is older than the record if a later master was killed.
    if story is None or story.wall_seconds <= sum(times.values()):
        return times
    profile = TimeProfile(seconds=dict(times))
    after = {part: seconds - times.get(part, 0.0) for part, seconds in story.parts.items()}
    # Together: what counts as training at first may turn out to have been a wait.
    profile.add(REDOING, after.pop(TRAINING, 0.0) + after.pop(WAITING, 0.0))
    for part, seconds in after.items():
        profile.add(part, seconds)
    return profile.seconds
