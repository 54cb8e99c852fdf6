"""TrainingMetrics: the state that a running job reports, for observers, the history and the command line."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from enum import StrEnum
from typing import Generic, TypeVar

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
    UNKNOWN = "Unknown"
    """Of an observer whose questions the job's master does not answer; no master has it."""

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


# By default, pydantic writes NaN as null, which is no number and hides a loss that is not finite.
_MEASURED = ConfigDict(allow_inf_nan=True, ser_json_inf_nan="strings")


class HeadMetrics(Spec):
    """How well one output of a model predicts its label; a figure is absent where it is not defined for that kind."""

    model_config = _MEASURED

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

    model_config = _MEASURED

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
    """Samples whose gradients were applied, repeats counted, and those of `samples_of_start`."""
    samples_of_start: int = 0
    """Samples of another job, in the model of its record at whose positions this one began; each counted once."""
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
    failed_saves: int = 0
    """Since the last complete record."""
    failing_seconds: float | None = None
    """Since the first of them."""
    save_problem: str = ""
    """Why the last of them failed."""
    pods: tuple[PodMetrics, ...] = ()
    migration: MigrationMetrics | None = None
    given_up: str = ""
    """The last change of pods that was undone because it made no progress, and why; until another change is
    requested."""

    def with_heads(self, heads: tuple[HeadMetrics, ...], *, evaluated: bool) -> TrainingMetrics:
        """The same with other figures of the model's outputs."""
        first = heads[0] if heads else HeadMetrics(name="")
        several = len(heads) > 1 or first.mean_squared_error is not None
        return self.model_copy(
            update={
                "auc": first.auc,
                "normalized_entropy": first.normalized_entropy,
                "heads": heads if several else (),
                "evaluated": evaluated,
            }
        )

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


class Steps(msgspec.Struct, frozen=True):
    """Sums over steps of workers in one configuration of a job.

    Attributes:
        ever: number of all steps of single workers; a simulation counts parts of steps, too. In all other sums, older
            steps may count less.
        steps, seconds: the quotient is the mean duration of a step.
        others: further sums, by the needs of the caller.
    """

    ever: float = 0.0
    steps: float = 0.0
    seconds: float = 0.0
    others: tuple[float, ...] = ()

    @property
    def mean(self) -> float:
        """Seconds per step."""
        return self.seconds / self.steps

    def plus(self, later: Steps, kept: float = 1.0) -> Steps:
        """The sum with later steps; `kept`: weight of these ones."""
        return Steps(
            self.ever + later.ever,
            kept * self.steps + later.steps,
            kept * self.seconds + later.seconds,
            tuple(kept * mine + other for mine, other in zip(self.others, later.others, strict=True))
            if self.others
            else later.others,
        )


SHIFT = 1.5
"""Factor by which steps must become longer or shorter for earlier measurements to be set aside. Chosen: the model's
error on real jobs is below a tenth, and in the noisiest simulated windows (a standard deviation of 0.2) two in a row
differ by this factor from their mean once in 2,000."""
PERIOD_SECONDS = 20.0
"""Two periods in a row show a shift. Chosen: another pod that starts on the node disturbs for less than both, and three
periods, the first of which may have seen both speeds, are a third of the time between two rounds of scaling."""
PERIOD_STEPS = 50
"""A period has at least so many steps. Chosen: as `ScalingSettings.least_steps`."""

Configuration = TypeVar("Configuration", bound=Hashable)


def shift(period: Steps, usual: Steps) -> int:
    """1: the steps of a period are longer than usual by SHIFT, -1: shorter; 0: neither."""
    ours, theirs = period.seconds * usual.steps, usual.seconds * period.steps
    return (ours >= SHIFT * theirs) - (theirs >= SHIFT * ours)


class StepsByConfiguration(Generic[Configuration]):
    """The steps of one job by its configuration, all measured at one speed of its nodes.

    While other programs use its nodes, all steps of a job are longer. A model of steps of both speeds is wrong, and
    configurations that the job has left are not measured again. Therefore, if the present configuration becomes slower
    or faster by SHIFT for two periods, all earlier measurements are set aside. They count again when the speed returns.

    Attributes:
        sums: the measurements that count, in the order in which configurations were first measured.
    """

    def __init__(self, known: Mapping[Configuration, Steps] | None = None) -> None:
        self.sums: dict[Configuration, Steps] = dict(known or {})
        self._aside: dict[Configuration, Steps] = {}
        self._present: Configuration | None = None
        self._usual: Steps | None = None
        self._direction = 0
        self._period, self._began = Steps(), 0.0

    def add(self, configuration: Configuration, window: Steps, kept: float, since: float, time: float) -> None:
        """Adds a window of steps.

        Args:
            kept: weight of the configuration's earlier steps.
            since, time: begin and end of the window, seconds.
        """
        if configuration != self._present:
            self._present, self._direction, self._period = configuration, 0, Steps()
        if not self._period.ever:
            self._began = since
            if not self._direction:
                self._usual = self.sums.get(configuration)
        self._period = self._period.plus(window)
        before = self.sums.get(configuration)
        self.sums[configuration] = window if before is None else before.plus(window, kept)
        if time - self._began >= PERIOD_SECONDS and self._period.ever >= PERIOD_STEPS:
            self._end_period(configuration, self._period)
            self._period = Steps()

    def _end_period(self, configuration: Configuration, period: Steps) -> None:
        direction = 0 if self._usual is None else shift(period, self._usual)
        if not direction or direction != self._direction or self._usual is None:
            self._direction = direction
            return
        # Without the two periods, which belong to the other speed.
        self.sums[configuration] = self._usual
        known, self._aside, self._direction = self._aside, self.sums, 0
        is_back = configuration in known and not shift(period, known[configuration])
        self.sums = known if is_back else {configuration: period}
