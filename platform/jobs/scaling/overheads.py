"""The costs of changing a job on this cluster, from the runs of the latest jobs in MLflow."""

from __future__ import annotations

import math
from collections.abc import Iterable

from elastrec.platform.history import metric_names as names
from elastrec.platform.history.records import JobRecord
from elastrec.platform.scaling.search.objectives import measured_overheads
from elastrec.platform.scaling.types import Overheads

LATEST_JOBS = 50
"""Chosen: the jobs of a day on a busy cluster, because older start times are less relevant."""


def overheads_of(records: Iterable[JobRecord]) -> Overheads:
    """Medians over the latest jobs; documented defaults if no job has such a change.

    Invalid numbers (written by another tool) are left out. Policies change servers only while a job trains, so the
    pause of a change is the hand-over of its rows.
    """
    known = [record.metrics for record in records]

    def measured(name: str) -> list[float]:
        return [each for metrics in known for each in _usable(metrics.get(name))]

    return measured_overheads(
        measured(names.WORKER_START_SECONDS), measured(names.SERVER_START_SECONDS),
        measured(names.MIGRATION_PAUSE_SECONDS), measured(names.MIGRATION_COPY_SECONDS),
        measured(names.WORKER_START_CORE_SECONDS), measured(names.SERVER_START_CORE_SECONDS),
    )  # fmt: skip


def _usable(seconds: float | None) -> list[float]:
    return [seconds] if seconds is not None and math.isfinite(seconds) and seconds >= 0 else []
