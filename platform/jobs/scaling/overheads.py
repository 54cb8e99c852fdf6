"""What changing a job costs on this cluster, learned from the runs of its latest jobs in MLflow."""

from __future__ import annotations

import math
from collections.abc import Iterable

from elastrec.platform.history import metric_names as names
from elastrec.platform.history.records import JobRecord
from elastrec.platform.scaling.search.objectives import measured_overheads
from elastrec.platform.scaling.types import Overheads

LATEST_JOBS = 50
"""Chosen: a day of a busy cluster; what starts cost last month says little about today."""
_RECOVERING_SECONDS = names.named(names.TIME_SECONDS, part="recovering")


def overheads_of(records: Iterable[JobRecord]) -> Overheads:
    """Medians over the latest jobs, documented defaults for what none of them has done.

    Numbers that mean nothing (another tool wrote them) are left out.

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
