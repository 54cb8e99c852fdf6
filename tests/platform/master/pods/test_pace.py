"""The interval of heartbeats: it limits the load of the master, and never causes false timeouts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elastrec.platform.master.pods.pace import MOST_BEATS_PER_SECOND, heartbeat_seconds, silence_seconds
from elastrec.platform.specs.job import FaultTolerance
from elastrec.platform.specs.text.quantities import SHORTEST_TIMEOUT_SECONDS

seconds = st.floats(0.01, 1000)
timeouts = st.floats(SHORTEST_TIMEOUT_SECONDS, 1000)


@st.composite
def tolerances(draw: st.DrawFn) -> FaultTolerance:
    interval = draw(seconds)
    return FaultTolerance(
        heartbeat_interval=interval,
        heartbeat_timeout=2 * interval + draw(timeouts),
        lease=2 * interval + draw(timeouts),
    )


def test_a_large_job_sends_heartbeats_less_often_than_a_small_one():
    faults = FaultTolerance(heartbeat_interval=0.5, heartbeat_timeout=15, lease=120)
    assert heartbeat_seconds(faults, 2) == heartbeat_seconds(faults, 75) == 0.5
    assert heartbeat_seconds(faults, 750) == 5.0
    assert silence_seconds(faults, 0.5) == silence_seconds(faults, 5.0) == 15


def test_several_heartbeats_fit_into_a_lease_for_every_size_of_job():
    faults = FaultTolerance(heartbeat_interval=0.5, heartbeat_timeout=15, lease=120)
    assert heartbeat_seconds(faults, 1_000_000) == 30
    assert silence_seconds(faults, 30) == 90


@given(tolerances(), st.integers(0, 10**6))
def test_no_pod_is_silent_that_beats_as_ordered(faults: FaultTolerance, pods: int):
    beat_seconds = heartbeat_seconds(faults, pods)
    assert beat_seconds >= faults.heartbeat_interval
    assert silence_seconds(faults, beat_seconds) > 2 * beat_seconds
    assert faults.lease > 2 * beat_seconds
    assert pods / beat_seconds <= MOST_BEATS_PER_SECOND * (1 + 1e-9) or beat_seconds >= faults.lease / 4
