"""Data of earlier jobs that a round uses: costs of changes on this cluster, and models of similar jobs."""

from __future__ import annotations

from dataclasses import dataclass, field

import structlog

from elastrec.platform.history.history import History
from elastrec.platform.jobs.ending.tracking import tracking_answers
from elastrec.platform.jobs.scaling.overheads import LATEST_JOBS, overheads_of
from elastrec.platform.jobs.starting.starting_sizes import LOOKED_AT, past_job
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.scaling.types import Overheads
from elastrec.platform.scaling.warm_start import PastJob
from elastrec.platform.specs.errors import HistoryError
from elastrec.platform.specs.scaling import ScalingSettings

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Learned:
    """From MLflow, read once per round.

    Attributes:
        past: jobs with a fitted model.
    """

    overheads: Overheads = field(default_factory=Overheads)
    past: tuple[PastJob, ...] = ()


def learned(platform: Platform, settings: ScalingSettings) -> Learned:
    """Medians over the latest jobs, including running ones, and the models of finished jobs.

    If MLflow does not answer, documented defaults are used, with a log line, because a round matters more than the
    exact cost of a start.
    """
    reason = "MLflow does not answer"
    if tracking_answers(platform):
        try:
            records = History(platform.tracking_uri, settings.experiment).job_records(limit=LOOKED_AT)
        except HistoryError as error:
            reason = str(error)
        else:
            known = [job for each in records if (job := past_job(each)).coefficients is not None]
            result = Learned(overheads_of(records[:LATEST_JOBS]), tuple(known))
            costs = {name: getattr(result.overheads, name) for name in result.overheads.__struct_fields__}
            log.info("history_read", jobs=len(records), models=len(known), **costs)
            return result
    log.warning("history_not_read", reason=reason, consequence="documented defaults count, no job has a prior")
    return Learned()
