"""The heartbeat interval of pods and their timeout, from the job file and the size of the job. Pure.

Each heartbeat costs the master the same, so the number of heartbeats per second is limited: a hundred pods use the
interval in the job file, a thousand pods send one every five seconds. Urgent reports (a reached directive or a finished
feed) are sent immediately.
"""

from __future__ import annotations

from elastrec.platform.specs.job import FaultTolerance

MOST_BEATS_PER_SECOND = 150.0
"""Maximum heartbeats per second of all pods, which use less than a tenth of a core of the master."""

_MOST_LOOKS_PER_SECOND = 2000.0

_HURRIED_SECONDS = 0.05
"""Maximum time until a paused worker is informed of the progress of others."""

# Progress must be reported several times within a lease, otherwise every lease would expire during training.
_BEATS_PER_LEASE = 4
_MISSED_BEATS = 3


def heartbeat_seconds(faults: FaultTolerance, pods: int) -> float:
    """Seconds between two heartbeats of each pod, for a number of pods; never less than in the job file."""
    bounded = min(pods / MOST_BEATS_PER_SECOND, faults.lease / _BEATS_PER_LEASE)
    return max(faults.heartbeat_interval, bounded)


def hurried_seconds(pods: int) -> float:
    """Seconds between two heartbeats while workers pause for a save."""
    return max(_HURRIED_SECONDS, pods / MOST_BEATS_PER_SECOND)


def look_seconds(pods: int) -> float:
    """Seconds between two checks of all pods for silence; the cost of a check grows with the number of pods."""
    return pods / _MOST_LOOKS_PER_SECOND


def silence_seconds(faults: FaultTolerance, beat_seconds: float) -> float:
    """The silence after which a pod counts as dead, if its last interval was `beat_seconds`."""
    return max(faults.heartbeat_timeout, _MISSED_BEATS * beat_seconds)
