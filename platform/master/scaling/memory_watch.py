"""A master's forecast of the memory of its job's servers, between two rounds of scaling (`platform.scaling`)."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Mapping

import msgspec

from elastrec.platform.clusters.nodes import Node
from elastrec.platform.clusters.pods import PodStatus
from elastrec.platform.history import metric_names as names
from elastrec.platform.master.pods.shape import IN_PLACE_SECONDS
from elastrec.platform.master.scaling.facts import facts_of, largest_server_bytes
from elastrec.platform.master.scaling.requests import request_of
from elastrec.platform.scaling.job_profile import NotNow
from elastrec.platform.scaling.memory_outlook import curve_of
from elastrec.platform.scaling.memory_watch import look
from elastrec.platform.scaling.types import Overheads
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.scaling import ScalingSettings
from elastrec.platform.transport.messages.ledger import OwnPlan
from elastrec.platform.transport.messages.observer import ChangeShape
from elastrec.platform.transport.messages.profile import Profile


class MemoryWatch:
    """Makes forecasts regularly. Not thread-safe: its owner calls it from one thread.

    The state need not be saved: requests are in the job's journal, so the next master does not repeat them.
    """

    def __init__(self, job_id: str, job: TrainingJob) -> None:
        self._job_id, self._job = job_id, job
        self._settings = ScalingSettings()
        self._next = -math.inf

    def round_announced(self, seconds: float) -> None:
        """A round has read the job's profile; the next one follows after this time."""
        self._settings = self._settings.model_copy(update={"round_interval": seconds})

    def is_due(self, now: float) -> bool:
        """Whether a forecast is due; never for a job without scaling. `now` is on the job's clock."""
        return self._job.spec.scaling.enabled and now >= self._next

    def look(
        self,
        profile: Profile,
        nodes: Iterable[Node],
        pods: Iterable[PodStatus],
        costs: Mapping[str, float],
        now: float,
        unix_seconds: float,
    ) -> tuple[ChangeShape, OwnPlan] | None:
        """The request for a change that is needed before the next round, and its plan; None if no change is needed.

        Args:
            pods: of the job, as the cluster knows them.
            costs: what starts and migrations of this job took, by metric name.
        """
        known = facts_of(
            self._job_id, self._job, profile, self._settings, prior=None,
            largest_bytes=largest_server_bytes(nodes, pods),
        )  # fmt: skip
        if isinstance(known, NotNow):
            return None
        found = look(known, plan_seconds(costs))
        self._next = now + found.seconds
        if found.plan is None or known.memory is None:
            return None
        plan = msgspec.structs.replace(
            found.plan, plan_id=f"plan-{uuid.uuid4().hex}", shape_version=known.shape_version,
            memory=curve_of(known.memory),
        )  # fmt: skip
        own = OwnPlan(unix_seconds=unix_seconds, samples=profile.trained_samples, plan_json=msgspec.json.encode(plan))
        return request_of(plan), own

    def refused(self, now: float) -> None:
        """The request was refused; it is repeated as often as in rounds."""
        self._next = now + self._settings.round_interval


def plan_seconds(costs: Mapping[str, float]) -> float:
    """The maximum duration of a plan: its node has no room, a server starts elsewhere, and takes the rows over.

    Args:
        costs: as in `MemoryWatch.look`; documented defaults are used for durations without measurements.
    """
    usual = Overheads()
    return (
        IN_PLACE_SECONDS
        + costs.get(names.SERVER_START_SECONDS, usual.server_start_seconds)
        + costs.get(names.MIGRATION_COPY_SECONDS, usual.migration_copy_seconds)
        + costs.get(names.MIGRATION_PAUSE_SECONDS, usual.migration_pause_seconds)
    )
