"""How often pods give a heartbeat, and how long they may be silent: the job file's wish and the job's size. Pure.

A beat costs the master the same whatever the size of the job, so their number per second is bounded: a hundred pods
beat as the job file says, a thousand every five seconds. What cannot wait, a directive that was reached or a finished
feed, is reported at once.
"""

from __future__ import annotations

from elastrec.platform.specs.job import FaultTolerance

MOST_BEATS_PER_SECOND = 150.0
"""Of all pods together; they take less than a tenth of a core of the master."""

_MOST_LOOKS_PER_SECOND = 2000.0

_HURRIED_SECONDS = 0.05
"""So long, at most, a paused worker waits to hear what others have done."""

# Progress must come several times within a lease, or every shard would be given away while it is trained.
_BEATS_PER_LEASE = 4
_MISSED_BEATS = 3


def heartbeat_seconds(faults: FaultTolerance, pods: int) -> float:
    """Seconds between two heartbeats of each of so many pods; never less than the job file says."""
    bounded = min(pods / MOST_BEATS_PER_SECOND, faults.lease / _BEATS_PER_LEASE)
    return max(faults.heartbeat_interval, bounded)


def hurried_seconds(pods: int) -> float:
    """Seconds between two heartbeats while workers pause for a save."""
    return max(_HURRIED_SECONDS, pods / MOST_BEATS_PER_SECOND)


def look_seconds(pods: int) -> float:
    """Seconds between two looks at every one of so many pods: each look costs as much as there are pods."""
    return pods / _MOST_LOOKS_PER_SECOND


def silence_seconds(faults: FaultTolerance, beat_seconds: float) -> float:
    """After which silence a pod counts as dead whose last order was to beat every `beat_seconds`."""
    return max(faults.heartbeat_timeout, _MISSED_BEATS * beat_seconds)
