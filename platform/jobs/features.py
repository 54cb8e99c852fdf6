"""Fits the steps of features once, before any pod starts: the figures are part of the job that every pod gets."""

from __future__ import annotations

import structlog

from elastrec.checkpoints.summary import ModelSummary, steps_of
from elastrec.platform.data.entries import DataManifest
from elastrec.platform.data.features.fitting import FIT_ROWS, fit, unfitted_features, with_vocabularies
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.features import fitted_as
from elastrec.platform.specs.job import TrainingJob

log = structlog.get_logger(__name__)


def with_values(job: TrainingJob) -> TrainingJob:
    """The job with the values of its vocabulary files.

    Raises:
        DataError: a file is unusable.
    """
    return _with(job, with_vocabularies(job.spec.data))


def with_figures(job: TrainingJob, training: DataManifest, start: ModelSummary | None) -> tuple[TrainingJob, str]:
    """The job with the figures of its steps, and a line with the figures of each feature.

    Args:
        training: the training rows.
        start: the model from which the job continues, whose figures are kept if the steps are the same.

    Raises:
        DataError: rows are unusable, or leave nothing to fit.
    """
    data = job.spec.data
    names = unfitted_features(data)
    if not names:
        return job, ""
    known = {} if start is None else steps_of(start)
    fitted = fit(data, training, known)
    rows = min(training.rows, FIT_ROWS)
    lines = []
    for name in names:
        kept = fitted_as(data.features[name], known.get(name, ())) is not None
        figures = ", ".join(
            new.summary for old, new in zip(data.features[name], fitted.features[name], strict=True) if old != new
        )
        lines.append(f"  {name}: {figures}, {'of the record' if kept else f'fitted on {rows:,} rows'}")
    log.info("steps_fitted", features={name: [step.model_dump() for step in fitted.features[name]] for name in names})
    return _with(job, fitted), "\n".join(["Fitted steps:", *lines])


def _with(job: TrainingJob, data: TrainingData) -> TrainingJob:
    return job.model_copy(update={"spec": job.spec.model_copy(update={"data": data})})
