"""Speed and quality from heartbeats, in windows of a few seconds. Kept in memory only."""

from __future__ import annotations

import contextlib

import msgspec

from elastrec.platform.data.metrics.binary import COARSE_BINS
from elastrec.platform.data.metrics.heads import HeadSketches
from elastrec.platform.master.measuring.sketches import head_metrics
from elastrec.platform.specs.errors import DataError
from elastrec.platform.specs.metrics import WINDOW_SECONDS, HeadMetrics
from elastrec.platform.transport.messages.job import CopyProgress, Heartbeat, ServerLoad, TableUsage

FIRST_WINDOW_SECONDS = 1.0
_FIRST_WINDOWS = 30
"""Number of short windows at the start, so that a job of a few seconds also has a learning curve."""
_TRAFFIC = {
    "pulled": "bytes_pulled", "pushed": "bytes_pushed", "read": "bytes_read", "read_plain": "bytes_read_plain",
}  # fmt: skip
"""Quantities per sample, and their fields in WindowMetrics."""
_STEP_PHASES = ("wait", "pull", "compute", "push")


class PodSample(msgspec.Struct):
    """The last figures of one pod. Seconds are means per step of the last window.

    Attributes:
        problem: why a server has not restored yet; empty if there is no problem.
        copying: progress of a server with an order to take buckets over; None if it has no such order.
    """

    samples: int = 0
    batch_seconds: float = 0.0
    phase_seconds: dict[str, float] = {}
    compute_seconds_per_row: float = 0.0
    memory_bytes: int = 0
    cpu_seconds: float = 0.0
    dense_bytes: int = 0
    load: ServerLoad = ServerLoad()
    tables: list[TableUsage] = []
    incarnation: str = ""
    window: int = 0
    problem: str = ""
    copying: CopyProgress | None = None

    def share_of(self, *phases: str) -> float:
        """Share of some phases in a worker's steps; 0 if it has made no steps."""
        total = sum(self.phase_seconds.values())
        return sum(self.phase_seconds[phase] for phase in phases) / total if total else 0.0


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the job over a few seconds. Quality is measured before the update; None: nothing was trained.

    Attributes:
        losses: means of the model's named losses, if there are several.
        heads: of the model; empty if nothing was trained.
    """

    seconds: float
    samples: int
    samples_per_second: float
    loss: float | None
    losses: dict[str, float]
    heads: tuple[HeadMetrics, ...]
    batch_seconds: dict[str, float]
    memory_bytes: dict[str, int]


class _Sums(msgspec.Struct):
    steps: int = 0
    samples: int = 0
    seconds: list[float] = msgspec.field(default_factory=lambda: [0.0] * len(_STEP_PHASES))


class Monitor:
    """Aggregates heartbeats. Not thread-safe: its owner locks."""

    def __init__(self, now: float) -> None:
        self.pods: dict[str, PodSample] = {}
        self._since = now
        self._samples = 0
        self._windows = 0
        self._loss_sum = 0.0
        self._losses: dict[str, float] = {}
        self._sketches = HeadSketches(COARSE_BINS)
        self._steps: dict[str, _Sums] = {}
        self._waited = self._worked = 0.0
        self._traffic = dict.fromkeys(("samples", *_TRAFFIC), 0)

    def add(self, beat: Heartbeat, *, is_training: bool = False) -> bool:
        """Adds the metrics of one heartbeat, unless the window was already counted.

        Args:
            is_training: whether its seconds count for the waiting share.

        Returns:
            Whether steps were counted.
        """
        pod = self.pods.setdefault(beat.pod, PodSample())
        pod.memory_bytes, pod.cpu_seconds, pod.dense_bytes = beat.memory_bytes, beat.cpu_seconds, beat.dense_bytes
        pod.load = beat.load
        pod.problem = beat.restore_problem.reason if beat.restore_problem else ""
        pod.copying = beat.copying
        if beat.tables:
            pod.tables = beat.tables
        metrics = beat.metrics
        if pod.incarnation != beat.incarnation:
            pod.incarnation, pod.window = beat.incarnation, 0
        if not metrics.steps or 0 < metrics.number <= pod.window:
            return False
        pod.window = metrics.number
        pod.samples += metrics.samples
        self._samples += metrics.samples
        self._loss_sum += metrics.loss_sum
        self._traffic["samples"] += metrics.samples
        for kind, field in _TRAFFIC.items():
            self._traffic[kind] += getattr(metrics, field)
        for name, amount in metrics.losses.items():
            self._losses[name] = self._losses.get(name, 0.0) + amount
        if metrics.sketch:
            # A missing point of the curve must not fail the job; the loss still shows the problem.
            with contextlib.suppress(DataError):
                self._sketches.merge_encoded(metrics.sketch)
        sums = self._steps.setdefault(beat.pod, _Sums())
        sums.steps += metrics.steps
        sums.samples += metrics.samples
        parts = (metrics.wait_seconds, metrics.pull_seconds, metrics.compute_seconds, metrics.push_seconds)
        sums.seconds = [total + part for total, part in zip(sums.seconds, parts, strict=True)]
        if is_training:
            self._waited += metrics.wait_seconds
            self._worked += sum(parts)
        return True

    def dense_bytes(self) -> int:
        """Bytes of the dense parameters on all servers."""
        return sum(pod.dense_bytes for pod in self.pods.values())

    def tables(self) -> list[TableUsage]:
        """Rows and bytes of every table on all servers, by name."""
        totals: dict[str, TableUsage] = {}
        for usage in (usage for pod in self.pods.values() for usage in pod.tables):
            rows, size = (totals[usage.table].rows, totals[usage.table].bytes) if usage.table in totals else (0, 0)
            totals[usage.table] = TableUsage(table=usage.table, rows=rows + usage.rows, bytes=size + usage.bytes)
        return [totals[table] for table in sorted(totals)]

    def take_waiting_share(self) -> float | None:
        """Share of the workers' training time since the last call in which they waited for rows; None if there was no
        step."""
        waited, worked = self._waited, self._worked
        self._waited = self._worked = 0.0
        return waited / worked if worked else None

    def traffic(self) -> dict[str, float]:
        """Bytes per trained sample by kind (`traffic/...`), over all windows since this process began."""
        samples = self._traffic["samples"]
        return {f"traffic/{kind}_bytes_per_sample": self._traffic[kind] / samples for kind in _TRAFFIC if samples}

    def copy_problems(self) -> dict[str, str]:
        """Why servers have not copied the buckets that they are to take over, by name."""
        return {name: pod.copying.problem for name, pod in self.pods.items() if pod.copying and pod.copying.problem}

    def forget(self, pod: str) -> None:
        """Removes a pod that has ended."""
        self.pods.pop(pod, None)
        self._steps.pop(pod, None)

    def is_window_over(self, now: float) -> bool:
        """Whether it is time for `close_window`."""
        return now - self._since >= (FIRST_WINDOW_SECONDS if self._windows < _FIRST_WINDOWS else WINDOW_SECONDS)

    def close_window(self, now: float) -> Window:
        """The window since the last call."""
        seconds = now - self._since
        self._windows += bool(self._samples)
        for name, sums in self._steps.items():
            pod = self.pods[name]
            pod.batch_seconds = sum(sums.seconds) / sums.steps
            pod.phase_seconds = {
                phase: total / sums.steps for phase, total in zip(_STEP_PHASES, sums.seconds, strict=True)
            }
            computed = sums.seconds[_STEP_PHASES.index("compute")]
            pod.compute_seconds_per_row = computed / sums.samples if sums.samples else 0.0
        window = Window(
            seconds=seconds,
            samples=self._samples,
            samples_per_second=self._samples / seconds if seconds else 0.0,
            loss=self._loss_sum / self._samples if self._samples else None,
            losses={name: amount / self._samples for name, amount in self._losses.items()} if self._samples else {},
            heads=head_metrics(self._sketches),
            batch_seconds={name: self.pods[name].batch_seconds for name in self._steps},
            memory_bytes={name: pod.memory_bytes for name, pod in self.pods.items()},
        )
        self._since, self._samples, self._loss_sum = now, 0, 0.0
        self._losses, self._sketches, self._steps = {}, HeadSketches(COARSE_BINS), {}
        return window
