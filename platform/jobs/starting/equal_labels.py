"""Refuses a job whose evaluation rows all have the same label, before it is trained: no gate could judge its model."""

from __future__ import annotations

from elastrec.platform.data.entries import DataManifest
from elastrec.platform.data.statistics import only_value
from elastrec.platform.jobs.starting.kept_launch import launch_of
from elastrec.platform.specs.data import Partitioning
from elastrec.platform.specs.errors import FieldProblem, SpecError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.text.some import some

_NAMED = 3


def refuse_equal_labels(job: TrainingJob, job_id: str, evaluation: DataManifest) -> None:
    """Refuses evaluation rows in which every label has one value only, if the files' statistics show it.

    A job with another label is not refused, because its gate may judge that one, and neither is a job that was launched
    before, because its model may be trained already. If the statistics are not known, the job is trained, and the gate
    does not pass its model.

    Raises:
        SpecError: the labels are equal.
        DataError, CheckpointError: a file or the store could not be read.
    """
    data = job.spec.data
    values = {label.name: only_value(data, evaluation, label.name) for label in data.label_columns}
    known = {name: value for name, value in values.items() if value is not None}
    if len(known) < len(values) or launch_of(job.spec.checkpoint.store, job.metadata.name, job_id) is not None:
        return
    if data.partitioning is Partitioning.NONE:
        where, remedy = str(data.evaluation_path), "name other rows in spec.data.evaluation_path"
    else:
        where = some(evaluation.partitions, _NAMED)
        remedy = (
            "evaluate on other rows: `--evaluate-from DATE`, in Airflow *Day to evaluate on* beside *First moment to "
            "train on*"
        )
    is_binary = {label.name: label.kind == "binary" for label in data.label_columns}
    problems = [
        FieldProblem(
            "spec.data.labels" if data.labels else "spec.data.label",
            f"{name!r} (it is {value:g} in all {evaluation.rows:,} rows to evaluate on, {where})",
            f"a column with {'both 0 and 1' if is_binary[name] else 'several values'} in these rows: otherwise the "
            "trained model could not be judged, and would never become champion",
            f"correct the column, or {remedy}",
        )
        for name, value in known.items()
    ]
    raise SpecError(problems, "the rows to evaluate on")
