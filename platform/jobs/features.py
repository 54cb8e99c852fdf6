"""Steps of features are fitted once, before any pod starts: their figures stand in the job that every pod gets."""

from __future__ import annotations

import structlog

from elastrec.checkpoints.summary import ModelSummary, steps_of
from elastrec.platform.data.features.fitting import fit, unfitted_features, with_vocabularies
from elastrec.platform.data.manifest import DataManifest
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.job import TrainingJob

log = structlog.get_logger(__name__)


def with_values(job: TrainingJob) -> TrainingJob:
    """The job with the values of vocabulary files in it.

    Raises:
        DataError: a file is unusable.
    """
    return _with(job, with_vocabularies(job.spec.data))


def with_figures(job: TrainingJob, training: DataManifest, start: ModelSummary | None) -> TrainingJob:
    """The job with the figures of its steps in it.

    Args:
        training: the rows that the job trains on.
        start: the model that it goes on from, whose figures it keeps where the steps are the same.

    Raises:
        DataError: rows are unusable, or leave nothing to fit.
    """
    names = unfitted_features(job.spec.data)
    if not names:
        return job
    figures = fit(job.spec.data, training, {} if start is None else steps_of(start))
    log.info("steps_fitted", features={name: [step.model_dump() for step in figures.features[name]] for name in names})
    return _with(job, figures)


def _with(job: TrainingJob, data: TrainingData) -> TrainingJob:
    return job.model_copy(update={"spec": job.spec.model_copy(update={"data": data})})
