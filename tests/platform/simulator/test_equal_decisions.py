"""What is kept between rounds makes a simulation faster and changes no decision."""

from __future__ import annotations

import pytest

from elastrec.platform.scaling.policies.three_stage import ThreeStage
from elastrec.platform.scaling.policy import ScalingPolicy, View
from elastrec.platform.scaling.search.space import forget
from elastrec.platform.scaling.types import JobProfile, Plan, Proposal
from elastrec.platform.simulator.mixes import recurring
from elastrec.platform.simulator.nodes import Nodes
from elastrec.platform.simulator.report import Report
from elastrec.platform.simulator.settings import Settings
from elastrec.platform.simulator.simulation import Simulation
from tests.platform.simulator.cluster import NODE, PRICES

TROUBLED = Settings(seed=5, straggler_share=0.2, hot_server_share=0.2, hours_between_failures=100.0)


class Recording(ThreeStage):
    """The default policy, and every plan that it made for a job that was to change."""

    def __init__(self, *, forgets: bool) -> None:
        super().__init__()
        self._forgets = forgets
        self.decided: list[tuple[str, str]] = []

    def propose(self, job: JobProfile, view: View) -> Proposal:
        if self._forgets:
            forget()
        return super().propose(job, view)

    def select(self, proposals: list[Proposal], view: View) -> list[Plan]:  # type: ignore[override]
        plans = list(super().select(proposals, view))
        self.decided += [(plan.job_id, str(plan.allocation)) for plan in plans if plan.changes]
        return plans


def simulated(policy: ScalingPolicy, nodes: int) -> Report:
    return Simulation(recurring(8, 3), Nodes(nodes, NODE), policy, PRICES, TROUBLED).run()


@pytest.mark.parametrize(("nodes", "decisions"), [(4, 7), (40, 24)])
def test_nothing_is_decided_otherwise_where_nothing_is_kept(nodes: int, decisions: int) -> None:
    keeping, forgetting = Recording(forgets=False), Recording(forgets=True)
    assert simulated(keeping, nodes) == simulated(forgetting, nodes)
    assert keeping.decided == forgetting.decided
    assert len(keeping.decided) >= decisions
