"""What changing a job costs on this cluster, learned from the runs of its latest jobs in MLflow."""

from __future__ import annotations

import math
from collections.abc import Iterable

import structlog

from elastrec.platform.history import metric_names as names
from elastrec.platform.history.history import History
from elastrec.platform.history.records import JobRecord
from elastrec.platform.jobs.ending.tracking import tracking_answers
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.scaling.search.objectives import measured_overheads
from elastrec.platform.scaling.types import Overheads
from elastrec.platform.specs.errors import HistoryError
from elastrec.platform.specs.scaling import ScalingSettings

log = structlog.get_logger(__name__)
_LATEST_JOBS = 50
_RECOVERING_SECONDS = names.named(names.TIME_SECONDS, part="recovering")


def overheads(platform: Platform, settings: ScalingSettings) -> Overheads:
    """Medians over the latest jobs, running ones too; documented defaults for what none of them has done.

    Without MLflow the defaults count, and the log says so: a round is worth more than the exact price of a start.
    """
    if not tracking_answers(platform):
        log.warning("overheads_not_read", reason="MLflow does not answer", consequence="documented defaults count")
        return Overheads()
    try:
        latest = History(platform.tracking_uri, settings.experiment).job_records(limit=_LATEST_JOBS)
    except HistoryError as error:
        log.warning("overheads_not_read", reason=str(error), consequence="documented defaults count")
        return Overheads()
    found = overheads_of(latest)
    log.info("overheads", jobs=len(latest), **{name: getattr(found, name) for name in found.__struct_fields__})
    return found


def overheads_of(records: Iterable[JobRecord]) -> Overheads:
    """The same from records alone; numbers that mean nothing (another tool wrote them) are left out.

    A change of servers is a save, new servers and a restore: what a recovery from a lost server takes.
    """
    workers, servers, pauses = list[float](), list[float](), list[float]()
    for record in records:
        workers += _usable(record.metrics.get(names.WORKER_START_SECONDS))
        servers += _usable(record.metrics.get(names.SERVER_START_SECONDS))
        rollbacks = record.metrics.get(names.ROLLBACKS, 0.0)
        recovering = record.metrics.get(_RECOVERING_SECONDS)
        if recovering is not None and rollbacks >= 1:
            pauses += _usable(recovering / rollbacks)
    return measured_overheads(workers, servers, pauses)


def _usable(seconds: float | None) -> list[float]:
    return [seconds] if seconds is not None and math.isfinite(seconds) and seconds >= 0 else []
