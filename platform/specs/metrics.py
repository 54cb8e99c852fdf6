"""TrainingMetrics: the state that a running job reports, for observers, the history and the command line."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec
from pydantic import ConfigDict

from elastrec.platform.specs.base import Spec


class Phase(StrEnum):
    """The phase of a job. Without failures the order is: pending, starting, training, saving, evaluating, succeeded."""

    PENDING = "Pending"
    STARTING = "Starting"
    TRAINING = "Training"
    RECOVERING = "Recovering"
    SAVING = "Saving"
    EVALUATING = "Evaluating"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    STOPPED = "Stopped"

    @property
    def is_final(self) -> bool:
        return self in (Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED)


class Role(StrEnum):
    """The role of a pod."""

    MASTER = "master"
    WORKER = "worker"
    PARAMETER_SERVER = "parameter-server"
    EVALUATOR = "evaluator"


IDLE = "Idle"
"""State of a worker that was ordered to take no minibatch, and takes none."""


class PodMetrics(Spec):
    """One pod as its master sees it."""

    name: str
    role: Role
    state: str
    """`Pending`, `Starting`, `Running`, `Standby`, `Idle`, `Leaving` or `Gone`."""
    samples: int = 0
    batch_seconds: float = 0.0
    """Mean duration of a step in the last window."""
    phase_seconds: dict[str, float] = {}
    """Mean seconds per step in `wait`, `pull`, `compute`, `push` (workers)."""
    memory_bytes: int = 0
    restarts: int = 0
    reason: str = ""


class MigrationMetrics(Spec):
    """A running migration of parameter servers (DLRover-RM §5.2)."""

    stage: str
    """`starting`, `copying` or `handing over`."""
    leaving: tuple[str, ...] = ()
    """Servers that own buckets now and will not."""
    joining: tuple[str, ...] = ()
    """Servers that will own buckets and do not yet."""
    seconds: float = 0.0
    """Since it began."""
    stage_seconds: float = 0.0
    """Since it is in this stage."""
    idle: str = ""
    """Seconds without progress, if that is longer than normal."""
    buckets_left: int = 0
    """While copying: buckets, on all servers, of which some rows have not been copied yet."""
    problems: tuple[str, ...] = ()
    """Why servers could not copy or take over their buckets at the last try."""


class HeadMetrics(Spec):
    """How well one output of a model predicts its label; a figure is absent where it is not defined for that kind."""

    model_config = ConfigDict(allow_inf_nan=True)

    name: str
    auc: float | None = None
    normalized_entropy: float | None = None
    mean_squared_error: float | None = None
    normalized_error: float | None = None
    """Mean squared error over that of always predicting the mean label."""
    calibration: float | None = None
    """Mean prediction over mean label."""


class TrainingMetrics(Spec):
    """The state of one job at one moment. Unlike fields of specs, measured values may be NaN."""

    model_config = ConfigDict(allow_inf_nan=True)

    job: str
    """The job's id: its name and what makes this run this run."""
    phase: Phase
    reason: str = ""
    started_from: str = ""
    """The record from which the job started or continued, and the position in the data; empty if it started without
    one."""
    elapsed_seconds: float = 0.0
    samples_total: int = 0
    """Samples that the training shards hold, all epochs."""
    samples_trained: int = 0
    """Samples whose gradients were applied, repeats counted."""
    shards_total: int = 0
    shards_done: int = 0
    evaluation_shards_total: int = 0
    evaluation_shards_done: int = 0
    samples_per_second: float = 0.0
    loss: float | None = None
    """Mean of the trained loss of the last window, measured before the update."""
    losses: dict[str, float] = {}
    """The same of each loss that the model names, where there are several."""
    auc: float | None = None
    """While training: of the last window, before the update. After evaluation: on the evaluation rows. Of the model's
    first output, as the next one."""
    normalized_entropy: float | None = None
    heads: tuple[HeadMetrics, ...] = ()
    """The same of all outputs, where there are several or the label is no 0 or 1."""
    evaluated: bool = False
    """True when `auc` and `normalized_entropy` are those of the evaluation rows."""
    evaluation_samples: int = 0
    generation: int = 0
    """Grows by one with every rollback."""
    checkpoint: str | None = None
    """URI of the last complete record."""
    checkpoint_age_seconds: float | None = None
    """Since the cut of that record."""
    memory_copy_age_seconds: float | None = None
    """Since the cut of the last record that the memory of the node agents holds."""
    pods: tuple[PodMetrics, ...] = ()
    migration: MigrationMetrics | None = None
    given_up: str = ""
    """The last change of pods that was undone because it made no progress, and why; until another change is
    requested."""

    @property
    def is_stalled(self) -> bool:
        """Whether a change of pods makes no progress or was undone for that reason; `reason` names the change and the
        cause."""
        return bool(self.given_up or (self.migration and (self.migration.idle or self.migration.problems)))


class FaultCost(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a fault cost a job. A figure that is None is not known.

    Time without a master counts in its own figure alone.

    Attributes:
        paused_seconds: in which no row was trained or evaluated because of it.
        core_seconds, byte_seconds: cores and memory that registered pods of the job held meanwhile, as granted.
        repeated_rows: that workers had reported as trained, and that are trained again.
        repeated_seconds: of training and of waiting for rows, in which these rows were trained for the first time.
        vacant_seconds: from the loss of a pod until its successor has registered, or is lost itself.
        without_master_seconds: in which the job had no master; workers train the shards that they hold.
        is_over: false: these are the figures so far.
    """

    paused_seconds: float | None = None
    core_seconds: float | None = None
    byte_seconds: float | None = None
    repeated_rows: int | None = None
    repeated_seconds: float | None = None
    vacant_seconds: float | None = None
    without_master_seconds: float | None = None
    is_over: bool = True

    @property
    def words(self) -> str:
        """What is known of it; `cost: unknown` where nothing is."""
        known = [
            (self.paused_seconds, "training paused {:.1f} s"),
            (self.core_seconds, "{:,.0f} core-seconds held meanwhile"),
            (self.repeated_rows, "{:,} rows are trained again"),
            (self.vacant_seconds, "its place was vacant for {:.1f} s"),
            (self.without_master_seconds, "{:.1f} s without a master; whether workers paused is unknown"),
        ]
        words = ", ".join(form.format(value) for value, form in known if value is not None)
        return f"cost{'' if self.is_over else ' so far'}: {words or 'unknown'}"

    @staticmethod
    def total(costs: Iterable[FaultCost]) -> FaultCost:
        """The sum of what is known of several; a figure that none of them knows is not known."""
        listed = list(costs)
        sums = {
            name: sum(known) if (known := [v for each in listed if (v := getattr(each, name)) is not None]) else None
            for name in FaultCost.__struct_fields__
            if name != "is_over"
        }
        return FaultCost(**sums, is_over=all(each.is_over for each in listed))


WINDOW_SECONDS = 5.0
"""Seconds over which masters aggregate their figures, and between two checks of rows and memory. Chosen: short enough
for people who watch a job, and long enough for several steps of every worker."""
COUNTS_APART = 1.05
"""Factor between the numbers of samples at which the rows of a table are counted. Chosen: there are fourteen counts per
doubling, and the law that is fitted to them has two parameters."""
FADING_SECONDS = 180.0
KEPT_SHARE = 0.8
"""Factor of the weight of a measured speed after FADING_SECONDS. Chosen: after half an hour, a disturbance has a tenth
of its weight, and the noise of single windows of that length is still averaged over about five of them."""


def share_kept(seconds: float) -> float:
    """Weight, 0 to 1, of a speed by the seconds since it was measured; masters and the simulator use the same
    weights."""
    return float(KEPT_SHARE ** (seconds / FADING_SECONDS))
