"""From what a job reports to points of its series. Pure; the clock is a parameter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec
from numpy.typing import ArrayLike

from elastrec.platform.clusters.pods import PodStatus
from elastrec.platform.history import metric_names as names
from elastrec.platform.specs.metrics import Role, TrainingMetrics


class Point(msgspec.Struct, frozen=True):
    """One value of one metric.

    Attributes:
        name: see `metric_names`.
        value: NaN and infinities are kept: a loss that became NaN is news.
        step: samples trained so far, unless `metric_names` says otherwise.
        unix_seconds: when it was measured.
    """

    name: str
    value: float
    step: int
    unix_seconds: float


class CalibrationCurve(Protocol):
    """Mean predictions and observed rates of groups of rows, by rising prediction; arrays of one length."""

    @property
    def predicted(self) -> ArrayLike: ...
    @property
    def observed(self) -> ArrayLike: ...
    @property
    def rows(self) -> ArrayLike: ...


def window_points(metrics: TrainingMetrics, unix_seconds: float) -> list[Point]:
    """The series of a running job at one moment, for a Reporter; what pods hold and use comes from a CostMeter."""
    step = metrics.samples_trained
    values: dict[str, float | None] = {
        names.SAMPLES_PER_SECOND: metrics.samples_per_second,
        names.SAMPLES_TRAINED: float(metrics.samples_trained),
        names.ELAPSED_SECONDS: metrics.elapsed_seconds,
        names.LOSS: metrics.loss,
        names.WORKERS_RUNNING: float(_running(metrics, Role.WORKER)),
        names.SERVERS_RUNNING: float(_running(metrics, Role.PARAMETER_SERVER)),
    }
    if not metrics.evaluated:
        values |= {names.AUC: metrics.auc, names.NORMALIZED_ENTROPY: metrics.normalized_entropy}
        values |= _head_values(names.HEAD, metrics)
    values |= {names.named(names.NAMED_LOSS, name=name): value for name, value in metrics.losses.items()}
    for pod in metrics.pods:
        if pod.role is Role.WORKER and pod.batch_seconds:
            values[names.named(names.BATCH_SECONDS, pod=names.place(pod.name))] = pod.batch_seconds
            for part, seconds in pod.phase_seconds.items():
                values[names.named(names.PHASE_SECONDS, pod=names.place(pod.name), part=part)] = seconds
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
    """The totals of a job that has ended, and its evaluation if there was one."""
    values: dict[str, float | None] = {
        names.TOTAL_SECONDS: metrics.elapsed_seconds,
        names.TOTAL_SAMPLES: float(metrics.samples_total),
        names.TOTAL_SAMPLES_TRAINED: float(metrics.samples_trained),
        names.TOTAL_SHARDS: float(metrics.shards_total),
        names.TOTAL_SHARDS_DONE: float(metrics.shards_done),
        names.TOTAL_RESTARTS: float(sum(pod.restarts for pod in metrics.pods)),
        names.TOTAL_ROLLBACKS: float(metrics.generation),
    }
    if metrics.elapsed_seconds > 0:
        values[names.TOTAL_SAMPLES_PER_SECOND] = metrics.samples_trained / metrics.elapsed_seconds
    if metrics.evaluated:
        values |= {
            names.EVALUATION_AUC: metrics.auc,
            names.EVALUATION_NORMALIZED_ENTROPY: metrics.normalized_entropy,
            names.EVALUATION_SAMPLES: float(metrics.evaluation_samples),
            **_head_values(names.EVALUATION_HEAD, metrics),
        }
    return [
        Point(name, value, metrics.samples_trained, unix_seconds) for name, value in values.items() if value is not None
    ]


def calibration_points(curve: CalibrationCurve, unix_seconds: float, head: str = "") -> list[Point]:
    """Predicted against observed click rate, one step per group of rows.

    Args:
        head: of a model with several outputs, another one than the first.
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
    return [
        Point(name, float(value), group, unix_seconds)
        for name, column in columns.items()
        for group, value in enumerate(np.asarray(column, dtype=np.float64))
    ]


class Prices(msgspec.Struct, frozen=True):
    """Currency per core-hour and per GiB-hour; 0: not counted."""

    core_hour: float = 0.0
    gibibyte_hour: float = 0.0


class CostMeter:
    """Adds up what a job's pods hold, in core-seconds and byte-seconds, also of pods that are gone.

    Give it the cluster's pods often (`observe`); between two looks a pod counts with its size at the first of them. A
    pod counts from its start to its end.
    """

    def __init__(self, prices: Prices | None = None) -> None:
        self._prices = prices or Prices()
        self._counted_until: dict[str, float] = {}
        self._last: dict[str, PodStatus] = {}
        self._core_seconds: dict[Role, float] = {}
        self._byte_seconds: dict[Role, float] = {}
        self._cpu: dict[str, tuple[float, float]] = {}

    def observe(self, pods: Iterable[PodStatus], unix_seconds: float) -> None:
        """Counts the time since the last look. Pods that are no longer listed count until the last look at them."""
        for pod in pods:
            if pod.started_unix_seconds is None:
                continue
            begin = self._counted_until.get(pod.uid, pod.started_unix_seconds)
            end = unix_seconds if pod.finished_unix_seconds is None else pod.finished_unix_seconds
            size = self._last.get(pod.uid, pod).size
            if end > begin:
                self._core_seconds[pod.role] = self._core_seconds.get(pod.role, 0.0) + size.cores * (end - begin)
                self._byte_seconds[pod.role] = self._byte_seconds.get(pod.role, 0.0) + size.memory_bytes * (end - begin)
                self._counted_until[pod.uid] = end
            self._last[pod.uid] = pod

    @property
    def core_seconds(self) -> float:
        return sum(self._core_seconds.values())

    @property
    def byte_seconds(self) -> float:
        return sum(self._byte_seconds.values())

    @property
    def price(self) -> float:
        """Currency; 0 without prices."""
        gibibyte_hours = self.byte_seconds / 2**30 / 3600
        return self.core_seconds / 3600 * self._prices.core_hour + gibibyte_hours * self._prices.gibibyte_hour

    def points(self, samples_trained: int, unix_seconds: float) -> list[Point]:
        """The cost so far, by role and together."""
        values = {
            names.COST_CORE_SECONDS: self.core_seconds,
            names.COST_CORE_HOURS: self.core_seconds / 3600,
            names.COST_BYTE_SECONDS: self.byte_seconds,
            names.COST_GIBIBYTE_HOURS: self.byte_seconds / 2**30 / 3600,
        }
        for role, amount in self._core_seconds.items():
            values[names.named(names.COST_ROLE_CORE_SECONDS, role=role.value)] = amount
        for role, amount in self._byte_seconds.items():
            values[names.named(names.COST_ROLE_BYTE_SECONDS, role=role.value)] = amount
        if self.core_seconds:
            values[names.COST_SAMPLES_PER_CORE_SECOND] = samples_trained / self.core_seconds
        if self._prices != Prices():
            values[names.COST_PRICE] = self.price
        return [Point(name, value, samples_trained, unix_seconds) for name, value in values.items()]

    def usage_points(self, pods: Iterable[PodStatus], samples_trained: int, unix_seconds: float) -> list[Point]:
        """Cores and memory in use per place, in MLflow's "System metrics" view; cores need two looks.

        A pod that is on its way out and its replacement count together: MLflow refuses a model whose run has two values
        of one metric at one moment.
        """
        values: dict[str, float] = {}
        for pod in pods:
            if pod.phase.is_final:
                continue
            cpu_seconds, then = self._cpu.get(pod.uid, (pod.cpu_seconds, unix_seconds))
            self._cpu[pod.uid] = (pod.cpu_seconds, unix_seconds)
            place = names.place(pod.name)
            if unix_seconds > then:
                name = names.named(names.CPU_CORES, pod=place)
                cores = max(0.0, pod.cpu_seconds - cpu_seconds) / (unix_seconds - then)
                values[name] = values.get(name, 0.0) + cores
            if pod.memory_bytes:
                name = names.named(names.MEMORY_BYTES, pod=place)
                values[name] = values.get(name, 0.0) + pod.memory_bytes
        return [Point(name, value, samples_trained, unix_seconds) for name, value in values.items()]
