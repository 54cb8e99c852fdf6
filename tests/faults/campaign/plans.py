"""Sends the planned requests of a run to the running job, and inflicts faults while its servers change."""

from __future__ import annotations

import time

from elastrec.platform import jobs
from elastrec.platform.jobs.scaling.asking import ask_for_shape
from elastrec.platform.master.machine.migration import STARTING
from elastrec.platform.specs.errors import ClusterError, TransportError
from elastrec.platform.specs.metrics import MigrationMetrics, Role, TrainingMetrics
from elastrec.platform.transport.messages.observer import PodMove
from tests.faults.campaign.injury import Scene, inflict
from tests.faults.campaign.outcome import Outcome
from tests.faults.campaign.plan import AFTER, Planned, StageStrike, Victim
from tests.faults.campaign.watching import Hit, Watch

_AGAIN_SECONDS = 0.5
_STAGE_SECONDS, _CHANGE_SECONDS = 120.0, 120.0
"""So long a strike waits for its stage, and a plan for the end of the one before it."""


class Plans:
    """The plans of one run.

    Args:
        struck: list to which the hits of the strikes are added.
    """

    def __init__(
        self,
        platform: jobs.Platform,
        job_id: str,
        watch: Watch,
        scene: Scene,
        struck: list[list[Hit]],
        outcome: Outcome,
    ) -> None:
        self._platform, self._job_id, self._watch = platform, job_id, watch
        self._scene, self._struck, self._outcome = scene, struck, outcome

    def ask_for(self, plans: tuple[Planned, ...]) -> None:
        """Sends each plan when it is due, and repeats it until the master answers.

        If a change passes the stage of its strike too quickly or is given up earlier, the strike moves to the next
        change.
        """
        together: list[str] = []
        due: list[StageStrike] = []
        for plan in plans:
            if self._watch.wait_for_share(plan.at) is None:
                return
            if request := self._ask_for(plan):
                together.append(request)
            if plan.strike is not None:
                due.append(plan.strike)
                if self._strike(due[0], together):
                    del due[0]
                self._watch.wait_for_end(together, _CHANGE_SECONDS)
                together = []

    def _ask_for(self, plan: Planned) -> str:
        """The request's id; empty: it was refused, or the job is over."""
        while not self._watch.is_over.is_set():
            moves = self._moves(plan)
            if not plan.change and not moves:
                time.sleep(_AGAIN_SECONDS)  # no pod of the role is there at the moment
                continue
            try:
                answer = ask_for_shape(self._platform, self._job_id, plan.change, moves=moves)
            except (ClusterError, TransportError):
                time.sleep(_AGAIN_SECONDS)  # the master or the node agent is away
                continue
            self._outcome.plans.append(f"{plan}: {answer.reason or 'accepted'}")
            return answer.request_id
        return ""

    def _moves(self, plan: Planned) -> list[PodMove]:
        metrics = self._watch.last
        if plan.moved is None or metrics is None:
            return []
        role, number = plan.moved
        names = sorted(pod.name for pod in metrics.pods if pod.role is role and pod.state == "Running")
        return [PodMove(pod=names[number % len(names)])] if names else []

    def _strike(self, strike: StageStrike, requests: list[str]) -> bool:
        """Whether the change reached the stage, and the fault had a victim there."""
        victim = strike.fault.victim
        # The pod that a server is to start in is made a moment after the change has begun.
        is_new_one = victim is Victim.NEW_SERVER and strike.stage == STARTING
        change = self._watch.wait_for_stage(strike.stage, requests, _STAGE_SECONDS, joining=is_new_one)
        metrics = self._watch.last
        if change is None or metrics is None:
            return False
        hit = inflict(strike.fault, self._scene, victims(strike, change, metrics))
        if hit is None:
            return False
        self._struck.append([hit])
        self._outcome.faults.append(str(strike))
        return True


def victims(strike: StageStrike, change: MigrationMetrics, metrics: TrainingMetrics) -> list[str]:
    """Names of the possible victims of a fault; empty: the fault names its victim.

    If no server leaves, those that give buckets away count as old servers; if none joins, those that take buckets count
    as new ones.

    Args:
        change: the change of servers in the stage of the strike; for `AFTER`, its last state.
        metrics: present metrics of the job.
    """
    if not strike.fault.victim.is_server:
        return []
    servers = {pod.name for pod in metrics.pods if pod.role is Role.PARAMETER_SERVER}
    joining, leaving = set(change.joining), set(change.leaving)
    if strike.fault.victim is Victim.NEW_SERVER:
        return sorted(joining or servers - leaving)
    # Those that have left may be gone at any moment.
    stayed = servers - joining - leaving
    return sorted(stayed or leaving) if strike.stage == AFTER else sorted(leaving or servers - joining)
