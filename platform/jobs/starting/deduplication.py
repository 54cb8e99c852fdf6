"""Decides on deduplication once, before any pod starts: the groups are part of the job that every worker gets."""

from __future__ import annotations

import structlog

from elastrec.platform.data.deduplicating.deduplication_choice import choose_groups
from elastrec.platform.data.entries import DataManifest
from elastrec.platform.specs.deduplication import Deduplication
from elastrec.platform.specs.job import TrainingJob

log = structlog.get_logger(__name__)


def with_groups(job: TrainingJob, training: DataManifest) -> tuple[TrainingJob, str]:
    """The job with its deduplication as groups (or off), and a table of the chosen features with reasons (empty if
    off).

    Args:
        training: the rows that the job trains on.

    Raises:
        DataError: the session column is missing, or rows of the sample are unusable.
    """
    spec = job.spec
    if spec.deduplication.is_off:
        return job, ""
    chosen = choose_groups(
        spec.data, training, spec.deduplication, spec.training, computed_pooling=frozenset(spec.sequence_features)
    )
    log.info(
        "deduplication_chosen",
        asked="auto" if spec.deduplication.is_auto else list(spec.deduplication.named),
        groups=chosen.groups,
        factors={factor.name: round(factor.measured, 3) for factor in chosen.factors},
        rows=chosen.rows,
    )
    resolved = spec.model_copy(update={"deduplication": Deduplication(groups=chosen.groups)})
    return job.model_copy(update={"spec": resolved}), str(chosen)
