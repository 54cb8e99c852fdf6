"""The resources that each job holds, from the pods of the cluster."""

from __future__ import annotations

from elastrec.platform.clusters.nodes import Node
from elastrec.platform.clusters.pods import PodPhase, PodSize, PodStatus
from elastrec.platform.jobs.scaling.profiles import holders_of, profile_of
from elastrec.platform.jobs.scaling.standing import standing_of
from elastrec.platform.master.pods.launch import TEAM_LABEL
from elastrec.platform.scaling.amounts import Resources
from elastrec.platform.scaling.job_profile import NotNow
from elastrec.platform.scaling.types import JobProfile
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.scaling import ScalingSettings, Team
from tests.platform.jobs.scaling.test_profiles import ONE, TWO, measured_profile

SETTINGS = ScalingSettings(teams={"ads": Team(share=0.5, priority=3, minimum_workers=2)})
NODES = [Node(name="node", size=PodSize(8.0, 2**34), free=PodSize(1.0, 2**30))]


def pod(name: str, team: str | None, phase: PodPhase = PodPhase.RUNNING, waits_for_room: bool = False) -> PodStatus:
    return PodStatus(
        name=name, uid=name, job="clicks-1", role=Role.WORKER, phase=phase, waits_for_room=waits_for_room,
        size=PodSize(2.0, 2**31), labels={TEAM_LABEL: team} if team else {},
    )  # fmt: skip


def test_pods_count_for_their_team_and_those_that_wait_for_room_hold_nothing() -> None:
    pods = [
        pod("a", "ads"),
        pod("b", "ads", PodPhase.PENDING),
        pod("c", "ads", PodPhase.PENDING, waits_for_room=True),
        pod("d", "search", PodPhase.SUCCEEDED),
        pod("e", None),
    ]
    found = profile_of("clicks-1", measured_profile(is_settled=False, configuration=TWO), SETTINGS)
    known = standing_of(pods, NODES, SETTINGS, holders_of([found]))
    assert known.shares.held == {"ads": Resources(4.0, 2.0**32), "default": Resources(2.0, 2.0**31)}
    assert known.waiting == {"ads": [Resources(2.0, 2.0**31)]}
    assert known.shares.free == Resources(2.0, 2.0**34 - 3 * 2.0**31)
    assert known.shares.claim("ads") == Resources(0.0, 2.0**33 - 2.0**32)
    (holder,) = known.holders
    assert (holder.job_id, holder.pending_workers, holder.least_workers, holder.priority) == ("clicks-1", 1, 2, 3.0)


def test_a_teams_minimum_bounds_plans_as_the_job_files_does() -> None:
    found = profile_of("clicks-1", measured_profile({"minimum_workers": 1, "maximum_workers": 6}), SETTINGS)
    assert isinstance(found, JobProfile) and found.limits.workers == (2, 6)
    found = profile_of(
        "clicks-1", measured_profile({"minimum_workers": 4, "maximum_workers": 6}, worker_count=4), SETTINGS
    )
    assert isinstance(found, JobProfile) and found.limits.workers == (4, 6)


def test_a_job_without_scaling_never_returns_workers() -> None:
    found = profile_of("clicks-1", measured_profile({"enabled": False}, configuration=ONE), SETTINGS)
    assert isinstance(found, NotNow) and holders_of([found]) == []
