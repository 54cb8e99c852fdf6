"""Converts reports of a job to points of its series. Pure; time is a parameter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec
from numpy.typing import ArrayLike

from elastrec.platform.clusters.pods import PodStatus
from elastrec.platform.history import metric_names as names
from elastrec.platform.specs.elasticity import PaidPrices
from elastrec.platform.specs.metrics import HeadMetrics, Role, TrainingMetrics


class Point(msgspec.Struct, frozen=True):
    """One value of one metric.

    Attributes:
        name: see `metric_names`.
        value: may be NaN or infinite, because a loss that became NaN must be visible.
        step: samples trained so far, unless `metric_names` says otherwise.
        unix_seconds: when it was measured.
    """

    name: str
    value: float
    step: int
    unix_seconds: float


def json_number(value: float) -> float | str:
    """A number, or the word for it in protobuf's JSON: JSON itself has neither NaN nor infinity."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


class JsonPoint(msgspec.Struct, frozen=True):
    """A point in a JSON file, from which every value can be read back; msgspec would write NaN as null."""

    name: str
    value: float | str
    step: int
    unix_seconds: float

    @staticmethod
    def all(points: Iterable[Point]) -> list[JsonPoint]:
        """Points for a file."""
        return [JsonPoint(each.name, json_number(each.value), each.step, each.unix_seconds) for each in points]

    def point(self) -> Point:
        """Raises ValueError if the value is another word than `json_number` writes."""
        return Point(self.name, float(self.value), self.step, self.unix_seconds)


class CalibrationCurve(Protocol):
    """Mean predictions and observed rates of groups of rows, by increasing prediction; arrays of the same length."""

    @property
    def predicted(self) -> ArrayLike: ...
    @property
    def observed(self) -> ArrayLike: ...
    @property
    def rows(self) -> ArrayLike: ...


def window_points(metrics: TrainingMetrics, unix_seconds: float, trained: tuple[HeadMetrics, ...] = ()) -> list[Point]:
    """The series of a job at one moment, for a Reporter; a CostMeter provides the resources of pods.

    Args:
        trained: the model's outputs in the last window of training, if `metrics` has those of the evaluation.
    """
    if metrics.evaluated:
        metrics = metrics.with_heads(trained, evaluated=False)
    step = metrics.samples_trained
    values: dict[str, float | None] = {
        names.SAMPLES_PER_SECOND: metrics.samples_per_second,
        names.SAMPLES_TRAINED: float(metrics.samples_trained - metrics.samples_of_start),
        names.SAMPLES_OF_START: float(metrics.samples_of_start) if metrics.samples_of_start else None,
        names.LOSS: metrics.loss,
        names.AUC: metrics.auc,
        names.NORMALIZED_ENTROPY: metrics.normalized_entropy,
        names.WORKERS_RUNNING: float(_running(metrics, Role.WORKER)),
        names.SERVERS_RUNNING: float(_running(metrics, Role.PARAMETER_SERVER)),
    }
    values |= _head_values(names.HEAD, metrics)
    values |= {names.named(names.NAMED_LOSS, name=name): value for name, value in metrics.losses.items()}
    return _points(values | _step_values(metrics), step, unix_seconds)


def last_step(values: Mapping[str, float]) -> int:
    """The step of the last window of a job, from the last values of its run; 0 without a window."""
    return int(values.get(names.SAMPLES_TRAINED, 0) + values.get(names.SAMPLES_OF_START, 0))


def _step_values(metrics: TrainingMetrics) -> dict[str, float]:
    """A worker's step and its parts, as means over the workers, and the step of the slowest one."""
    workers = [pod for pod in metrics.pods if pod.role is Role.WORKER and pod.batch_seconds]
    if not workers:
        return {}
    steps = [pod.batch_seconds for pod in workers]
    parts = dict.fromkeys(part for pod in workers for part in pod.phase_seconds)
    return {
        names.STEP_SECONDS: sum(steps) / len(steps),
        names.SLOWEST_STEP_SECONDS: max(steps),
        **{
            names.named(names.STEP_PART_SECONDS, part=part): sum(pod.phase_seconds.get(part, 0.0) for pod in workers)
            / len(workers)
            for part in parts
        },
    }


def _points(values: Mapping[str, float | None], step: int, unix_seconds: float) -> list[Point]:
    return [Point(name, value, step, unix_seconds) for name, value in values.items() if value is not None]


def _head_values(template: str, metrics: TrainingMetrics) -> dict[str, float | None]:
    return {
        names.named(template, head=head.name, figure=figure): value
        for head in metrics.heads
        for figure, value in head.model_dump(exclude={"name"}).items()
    }


def _running(metrics: TrainingMetrics, role: Role) -> int:
    return sum(pod.role is role and pod.state in ("Running", "Leaving") for pod in metrics.pods)


def final_points(metrics: TrainingMetrics, unix_seconds: float) -> list[Point]:
    """The final points of a job that has ended, without its last window; with its evaluation, if there was one."""
    values: dict[str, float | None] = {
        names.RESTARTS: float(sum(pod.restarts for pod in metrics.pods)),
        names.ROLLBACKS: float(metrics.generation),
    }
    if metrics.evaluated:
        values |= {
            names.EVALUATION_AUC: metrics.auc,
            names.EVALUATION_NORMALIZED_ENTROPY: metrics.normalized_entropy,
            **_head_values(names.EVALUATION_HEAD, metrics),
        }
    return _points(values, metrics.samples_trained, unix_seconds)


def calibration_points(curve: CalibrationCurve, unix_seconds: float, head: str = "") -> list[Point]:
    """Predicted and observed click rate, one step per group of rows, and their overall ratio for the first output.

    Args:
        head: another output than the first, of a model with several outputs.
    """
    import numpy as np

    columns = {
        names.CALIBRATION_PREDICTED: curve.predicted,
        names.CALIBRATION_OBSERVED: curve.observed,
        names.CALIBRATION_ROWS: curve.rows,
    }
    if head:
        columns = {
            names.named(names.CALIBRATION_HEAD, head=head, part=name.rpartition("/")[2]): column
            for name, column in columns.items()
        }
    points = [
        Point(name, float(value), group, unix_seconds)
        for name, column in columns.items()
        for group, value in enumerate(np.asarray(column, dtype=np.float64))
    ]
    predicted_C, observed_C, rows_C = (
        np.asarray(column, dtype=np.float64) for column in (curve.predicted, curve.observed, curve.rows)
    )
    clicks = float((observed_C * rows_C).sum())
    if not head and clicks:
        ratio = float((predicted_C * rows_C).sum()) / clicks
        points.append(Point(names.EVALUATION_CALIBRATION, ratio, 0, unix_seconds))
    return points


class PodCost(msgspec.Struct, frozen=True, array_like=True):
    """A pod whose cost is counted until `counted_until` (unix seconds), and its size at the last observation."""

    counted_until: float
    cores: float
    memory_bytes: int


class Costs(msgspec.Struct, frozen=True):
    """The state of a CostMeter: sums over all pods, and by uid the pods it has counted.

    Attributes:
        samples_before: of the job, trained before anything was counted: by another job, or by masters whose costs are
            unknown.
    """

    core_seconds: float = 0.0
    byte_seconds: float = 0.0
    pods: dict[str, PodCost] = {}
    samples_before: int = 0


class CostMeter:
    """Adds up the resources of a job's pods in core-seconds and byte-seconds, including pods that have ended.

    Call `observe` often; between two observations, a pod counts with its size at the first of them. A pod counts from
    its start to its end.

    Args:
        costs: of an earlier meter of the same job; counting continues from its last observation.

    Attributes:
        core_seconds, byte_seconds: of all pods until the last observation.
    """

    def __init__(self, costs: Costs | None = None) -> None:
        costs = costs or Costs()
        self._pods = dict(costs.pods)
        self._samples_before = costs.samples_before
        self.core_seconds = costs.core_seconds
        self.byte_seconds = costs.byte_seconds
        self._cpu: dict[str, tuple[float, float]] = {}

    def costs(self) -> Costs:
        """The state with which another meter can continue."""
        return Costs(self.core_seconds, self.byte_seconds, dict(self._pods), self._samples_before)

    def observe(self, pods: Iterable[PodStatus], unix_seconds: float) -> None:
        """Counts the time since the last observation. Pods that are no longer listed count until they were last
        observed."""
        for pod in pods:
            if pod.started_unix_seconds is None:
                continue
            started = PodCost(pod.started_unix_seconds, pod.size.cores, pod.size.memory_bytes)
            before = self._pods.get(pod.uid, started)
            end = unix_seconds if pod.finished_unix_seconds is None else pod.finished_unix_seconds
            until = max(end, before.counted_until)
            self.core_seconds += before.cores * (until - before.counted_until)
            self.byte_seconds += before.memory_bytes * (until - before.counted_until)
            self._pods[pod.uid] = PodCost(until, pod.size.cores, pod.size.memory_bytes)

    def cost_so_far(self, samples_trained: int, unix_seconds: float, prices: PaidPrices | None = None) -> list[Point]:
        """A point of each cost curve; the curve in money exists only with prices."""
        values = {names.CORE_HOURS: self.core_seconds / 3600}
        if prices is not None:
            values[names.COST] = prices.of(self.core_seconds, self.byte_seconds)
        return _points(values, samples_trained, unix_seconds)

    def whole_cost(self, samples_trained: int, unix_seconds: float) -> list[Point]:
        """The cost of a job that has ended, without the last point of that curve."""
        values = {names.GIBIBYTE_HOURS: self.byte_seconds / 2**30 / 3600}
        if self.core_seconds:
            values[names.SAMPLES_PER_CORE_SECOND] = (samples_trained - self._samples_before) / self.core_seconds
        return _points(values, samples_trained, unix_seconds)

    def usage_points(self, pods: Iterable[PodStatus], samples_trained: int, unix_seconds: float) -> list[Point]:
        """Cores and memory in use by role, for MLflow's "System metrics" view; cores need two observations."""
        values: dict[str, float] = {}
        for pod in pods:
            if pod.phase.is_final:
                continue
            cpu_seconds, then = self._cpu.get(pod.uid, (pod.cpu_seconds, unix_seconds))
            self._cpu[pod.uid] = (pod.cpu_seconds, unix_seconds)
            role = pod.role.value.replace("-", "_")
            if unix_seconds > then:
                name = names.named(names.CPU_CORES, role=role)
                cores = max(0.0, pod.cpu_seconds - cpu_seconds) / (unix_seconds - then)
                values[name] = values.get(name, 0.0) + cores
            if pod.memory_bytes:
                name = names.named(names.MEMORY_BYTES, role=role)
                values[name] = max(values.get(name, 0.0), float(pod.memory_bytes))
        return _points(values, samples_trained, unix_seconds)
