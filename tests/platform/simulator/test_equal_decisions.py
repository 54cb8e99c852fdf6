"""Caches between rounds make a simulation faster and change no decision."""

from __future__ import annotations

import msgspec
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
from elastrec.platform.simulator.workload import JobToRun
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


def twin(job: JobToRun) -> JobToRun:
    """Another model with the same plans open to it: what is kept of one must not be used for the other."""
    shape = msgspec.structs.replace(
        job.shape, embedding_dimension=2 * job.shape.embedding_dimension, dense_bytes=5 * job.shape.dense_bytes
    )
    return msgspec.structs.replace(job, job_id=f"{job.job_id}-twin", shape=shape)


def simulated(policy: ScalingPolicy, nodes: int) -> Report:
    jobs = recurring(4, 5)
    return Simulation([*jobs, *map(twin, jobs)], Nodes(nodes, NODE), policy, PRICES, TROUBLED).run()


@pytest.mark.parametrize(("nodes", "decisions"), [(5, 5), (40, 22)])
def test_nothing_is_decided_otherwise_where_nothing_is_kept(nodes: int, decisions: int) -> None:
    keeping, forgetting = Recording(forgets=False), Recording(forgets=True)
    assert simulated(keeping, nodes) == simulated(forgetting, nodes)
    assert keeping.decided == forgetting.decided
    assert len(keeping.decided) >= decisions
