"""What a round takes from earlier jobs: what changes cost on this cluster, and how fast similar jobs were."""

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
        past: jobs whose fitted model is known.
    """

    overheads: Overheads = field(default_factory=Overheads)
    past: tuple[PastJob, ...] = ()


def learned(platform: Platform, settings: ScalingSettings) -> Learned:
    """Medians over the latest jobs, running ones too, and the models of those that are similar to others.

    Without MLflow documented defaults count, and the log says so: a round is worth more than the exact price of a
    start.
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
