"""The values that are passed between tasks as plain JSON objects.

Each contains everything that the following tasks need, so a task takes one value, from the task before it, and the
graph of a job's tasks is a chain. In a task's output the job is the object `training_job` instead of the text
`job_json`. This module computes nothing. Operators import it when they run, because it loads the platform, which would
slow down the parsing of DAGs.
"""

from __future__ import annotations

import msgspec

from elastrec.platform.jobs.types import Allocation, GateDecision, Launched, Prepared


class AllocatedJob(Allocation, frozen=True, kw_only=True):
    """Output of `WarmStartOperator`: the start-up sizes of a job."""

    prepared: Prepared


class LaunchedJob(Launched, frozen=True, kw_only=True):
    """Output of `LaunchJobOperator`: a job in the cluster, and the parameters of its launch."""

    prepared: Prepared
    allocation: Allocation


class TrainedJob(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `OfflinePhaseOperator`: the job, and the fields of its last `TrainingMetrics`."""

    launched: LaunchedJob


class JudgedJob(GateDecision, frozen=True, kw_only=True):
    """Output of `EvaluateAndGateOperator`: the gate's decision about a job."""

    launched: LaunchedJob


class ChangedJob(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `ScaleJobOperator` and `MigratePodsOperator`: the outcome of a request for another shape.

    Attributes:
        request_id: of the job's master; empty: the master refused, or was not asked.
        proposed: the candidates; `chosen`: the requested shape.
        migrated: whether the job has the requested shape.
        outcome: a `ShapeOutcome`; "open": the task did not wait to the end; "gone": the job ended before.
        pause_seconds: total time of the request's hand-overs of rows; None unless the shape was reached, and if it is
            unknown because the job has ended since.
    """

    job_id: str
    request_id: str = ""
    proposed: str
    chosen: str
    migrated: bool
    outcome: str
    reason: str = ""
    pause_seconds: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether the master continues the request."""
        return self.outcome == "open"

    def words(self, longest: int | None = None) -> str:
        """Text for the log or, with at most `longest` characters, for the grid: proposal, choice and outcome.

        Each part keeps its beginning, so that a long proposal hides neither the choice nor the pause.
        """
        if self.migrated:
            end = "migrated" if self.pause_seconds is None else f"migrated, pause {self.pause_seconds:.2f} s"
        else:
            end = self.outcome + (f": {self.reason}" if self.reason else "")
        parts = [self.chosen, end] if self.proposed == self.chosen else [f"proposed {self.proposed}", self.chosen, end]
        if longest is not None:
            # The rest of the share of a short part is available to the other parts.
            room = longest - len(f"{self.job_id}: ") - 2 * (len(parts) - 1)
            for left, place in enumerate(sorted(range(len(parts)), key=lambda at: len(parts[at]))):
                parts[place] = _cut(parts[place], room // (len(parts) - left))
                room -= len(parts[place])
        return f"{self.job_id}: " + "; ".join(parts)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: max(0, longest - 1)]}…"
