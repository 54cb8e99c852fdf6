"""Sends the job's series to its MLflow run. Problems with MLflow do not affect training."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog

from elastrec.platform.clusters.protocol import Fleet, snapshot
from elastrec.platform.data.metrics.binary import BinaryMetricsSketch
from elastrec.platform.data.metrics.heads import HeadSketches
from elastrec.platform.history import metric_names as names
from elastrec.platform.history.delivery.reporter import Reporter
from elastrec.platform.history.delivery.spool import Spool
from elastrec.platform.history.points import CostMeter, Costs, Point, calibration_points, final_points, window_points
from elastrec.platform.history.records import TAG_PHASE
from elastrec.platform.master.pods.launch import LaunchRequest
from elastrec.platform.master.reporting.unsent_metrics import read_points, write_points
from elastrec.platform.specs.elasticity import PaidPrices
from elastrec.platform.specs.errors import CheckpointError, ClusterError, DataError
from elastrec.platform.specs.metrics import HeadMetrics, Phase, TrainingMetrics

log = structlog.get_logger(__name__)
SPOOL_FILE = "history.spool"
_WAITING_REPORTS = 64
_CALIBRATION_GROUPS = 20
_CHANGES = (
    names.WORKER_START_SECONDS, names.SERVER_START_SECONDS, names.WORKER_START_CORE_SECONDS,
    names.SERVER_START_CORE_SECONDS, names.MIGRATION_PAUSE_SECONDS, names.MIGRATION_COPY_SECONDS,
)  # fmt: skip


class Report(msgspec.Struct, frozen=True):
    """The state of the job at one moment.

    Attributes:
        totals: figures that are derived neither from `metrics` nor from the cluster, by metric name; like
            `evaluation_sketch`, complete when the job's phase is final.
        trained: the model's outputs in the last window in which something was trained.
    """

    metrics: TrainingMetrics
    totals: Mapping[str, float]
    evaluation_sketch: bytes
    trained: tuple[HeadMetrics, ...] = ()


class HistorySink:
    """Converts reports to points, and to the tag of the job's phase until it is final, in a separate thread.

    Args:
        fleet: provides the pods' sizes and usage, from which costs are computed.
        prices: for costs in money; None: not set.
    """

    def __init__(self, reporter: Reporter, fleet: Fleet, job_id: str, prices: PaidPrices | None = None) -> None:
        self._reporter = reporter
        self._fleet = fleet
        self._job_id = job_id
        self._prices = prices
        self._meter = CostMeter()
        self._costs = self._meter.costs()
        self._reports: queue.Queue[tuple[float, Report] | None] = queue.Queue(_WAITING_REPORTS)
        self._has_ended = False
        self._phase: Phase | None = None
        self._changes: Mapping[str, float] = {}
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

    def put(self, report: Report) -> None:
        """Takes a report; returns immediately. If too many are waiting, because the cluster does not answer, the oldest
        is dropped: the last one has the totals of the job."""
        entry = (time.time(), report)
        while True:
            try:
                self._reports.put_nowait(entry)
                return
            except queue.Full:
                log.warning("history_report_dropped", job=self._job_id, waiting=_WAITING_REPORTS)
                with contextlib.suppress(queue.Empty):
                    self._reports.get_nowait()

    @property
    def costs(self) -> Costs:
        """The costs of the job until the last report, for the next master."""
        return self._costs

    def recall(self, costs: Costs) -> None:
        """Continues from the costs that an earlier master has counted; must be called before the first report."""
        self._meter, self._costs = CostMeter(costs), costs

    @property
    def run_id(self) -> str:
        """The MLflow run; empty while there is none."""
        return self._reporter.run_id

    def name_run(self, run_id: str) -> None:
        """Sets the run, if the job was launched without one; earlier measurements are sent to it, too."""
        self._reporter.name_run(run_id)

    def stop_tags(self) -> None:
        """Writes no phase any more, because another master does, or the end of the job was written."""
        self._reporter.forget_tags()

    def close(self, deadline_seconds: float = 10.0) -> list[Point]:
        """Sends waiting points, for at most this time; returns the points that could not be sent."""
        deadline = time.monotonic() + deadline_seconds
        try:
            self._reports.put(None, timeout=deadline_seconds / 2)
            self._thread.join(deadline_seconds / 2)
        except queue.Full:
            log.warning("history_is_incomplete", job=self._job_id)
        self._reporter.close(max(0.5, deadline - time.monotonic()))
        return self._reporter.undelivered()

    def _run(self) -> None:
        while (entry := self._reports.get()) is not None:
            try:
                self._log(*entry)
            except Exception:
                log.exception("history_report_failed", job=self._job_id)

    def _log(self, measured: float, report: Report) -> None:
        if self._has_ended:
            return
        # Before the cluster is asked, which may take long.
        self._tag(report.metrics.phase)
        step = report.metrics.samples_trained
        points = window_points(report.metrics, measured, report.trained)
        try:
            pods = snapshot(self._fleet)
            now = time.time()
            self._meter.observe(pods, now)
            self._costs = self._meter.costs()
            points += self._meter.cost_so_far(step, now, self._prices)
            points += self._meter.usage_points(pods, step, now)
        except ClusterError as error:
            log.warning("pods_not_listed", job=self._job_id, reason=str(error))
        # Also sent while the job runs, for the next round of scaling; they change only with new pods.
        points += [
            Point(name, report.totals[name], step, measured)
            for name in _CHANGES
            if name in report.totals and self._changes.get(name) != report.totals[name]
        ]
        self._changes = report.totals
        if report.metrics.phase.is_final:
            self._has_ended = True
            points += final_points(report.metrics, measured)
            points += self._meter.whole_cost(step, measured)
            points += [
                Point(name, value, step, measured) for name, value in report.totals.items() if name not in _CHANGES
            ]
            points += _calibration(report.evaluation_sketch, measured)
        self._reporter.log(points)

    def _tag(self, phase: Phase) -> None:
        if phase.is_final:
            # `History.finish_run` writes it.
            self.stop_tags()
        elif phase is not self._phase:
            self._reporter.set_tag(TAG_PHASE, phase.value)
        self._phase = phase


def _calibration(encoded: bytes, now: float) -> list[Point]:
    if not encoded:
        return []
    try:
        heads = HeadSketches.decode(encoded).heads
    except DataError as error:
        log.warning("calibration_not_logged", reason=str(error))
        return []
    points: list[Point] = []
    for place, (head, sketch) in enumerate(heads.items()):
        if isinstance(sketch, BinaryMetricsSketch):
            curve = sketch.calibration(_CALIBRATION_GROUPS)
            points += calibration_points(curve, now) if place == 0 else calibration_points(curve, now, head)
    return points


def open_history_sink(request: LaunchRequest, fleet: Fleet, folder: Path) -> HistorySink | None:
    """The sink of a job; None if it was launched without history.

    Args:
        folder: kept when the master restarts; contains the metrics that MLflow has not received yet.
    """
    if not request.tracking_uri:
        return None
    reporter = Reporter(request.tracking_uri, request.run_id, spool=Spool(folder / SPOOL_FILE))
    return HistorySink(reporter, fleet, request.job_id, request.training_job.spec.history.prices)


def leave_points(request: LaunchRequest, points: list[Point]) -> None:
    """Writes the metrics that MLflow has not received to the job's store; they are sent when the model is published.

    Those that an earlier master of the job has left there stay.
    """
    if not points:
        return
    place = (request.store, request.training_job.metadata.name, request.job_id)
    try:
        uri = write_points(*place, [*read_points(*place), *points])
    except CheckpointError as error:
        log.error("history_lost", job=request.job_id, points=len(points), reason=str(error))
    else:
        log.warning("history_left", job=request.job_id, points=len(points), uri=uri)
