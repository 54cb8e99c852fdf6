"""The evaluator pod's work, from request to result."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import structlog

from elastrec.checkpoints import open_record
from elastrec.platform.data.entries import DataManifest
from elastrec.platform.data.manifest import read_manifest
from elastrec.platform.data.reading.reader import ShardReader
from elastrec.platform.specs.errors import JobFailedError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.transport.messages.export import ExportRequest, ExportResult
from elastrec.trainers.export import logged_model
from elastrec.trainers.export.artifact import Artifact, write_artifact
from elastrec.trainers.export.check import Checked, check_against_trainer
from elastrec.trainers.export.comparison import Comparison, compare_on
from elastrec.trainers.export.scorer import Scorer
from elastrec.trainers.export.signature import prediction_columns
from elastrec.trainers.worker.predictions import read_predictions

log = structlog.get_logger(__name__)

_EXAMPLE_ROWS = 5
_EXAMPLE_CANDIDATES = 100


def export(request: ExportRequest, work: Path) -> ExportResult:
    """Builds the model, checks it, scores it together with the champion, logs it.

    Args:
        work: folder with room for one copy of the model.

    Raises:
        JobFailedError: the exported model does not predict what the trainer predicted.
        CheckpointError, DataError, HistoryError: the record, the rows or the tracking server cannot be used.
    """
    job = TrainingJob.model_validate_json(request.job_json)
    with tempfile.TemporaryDirectory(prefix="artifact-", dir=work) as temporary:
        artifact = Path(temporary) / "artifact"
        artifact.mkdir()
        write_artifact(artifact, job, request.job_id, open_record(request.record_uri))
        size = sum(file.stat().st_size for file in artifact.rglob("*") if file.is_file())
        unsaved = Scorer(Artifact(artifact))
        columns = prediction_columns(unsaved.heads)
        manifest = read_manifest(request.evaluation_manifest_uri) if request.evaluation_manifest_uri else None
        example = _example(unsaved, manifest)
        saved = Path(request.artifact_uri) if request.artifact_uri else Path(temporary) / "saved"
        logged_model.save(job, artifact, saved, example, columns)
        model = logged_model.load(str(saved))
        scorer: Scorer = model.get_raw_model()
        checked = _check(request, scorer, model.predict, manifest)
        comparison = _compare(request, scorer, manifest)
        model_uri = str(saved)
        if request.tracking_uri:
            model_uri = logged_model.log_model(
                job, saved, tracking_uri=request.tracking_uri, run_id=request.run_id, record_uri=request.record_uri
            )
    result = ExportResult(
        model_uri=model_uri,
        checked_rows=checked.rows,
        largest_difference=checked.largest_difference,
        challenger=comparison.challenger if comparison else None,
        champion=comparison.champion if comparison else None,
        head=comparison.head if comparison else "",
        champion_problem=comparison.problem if comparison else "",
        artifact_bytes=size,
    )
    log.info("export_done", model_uri=model_uri, checked_rows=checked.rows, difference=checked.largest_difference)
    return result


def _example(scorer: Scorer, manifest: DataManifest | None) -> pa.Table | None:
    """The first usable ones of a few rows."""
    if manifest is None or not manifest.rows:
        return None
    reader = ShardReader(scorer.job.spec.data, manifest)
    raw = next(reader.read_raw(0, min(_EXAMPLE_CANDIDATES, manifest.rows)))
    reader.close()
    usable = raw.filter(pa.array(~scorer.score(raw).bad))[:_EXAMPLE_ROWS]
    return usable if usable.num_rows else None


def _check(
    request: ExportRequest, scorer: Scorer, predict: logged_model.Predict, manifest: DataManifest | None
) -> Checked:
    if manifest is None or not request.predictions_uri:
        log.warning("export_not_checked", reason="the request names no predictions or no evaluation rows")
        return Checked(0, 0.0)
    predictions = read_predictions(request.predictions_uri)
    if not predictions and request.checked_rows:
        raise JobFailedError(
            f"the export cannot be checked: the workers left no predictions in {request.predictions_uri}"
        )
    reader = ShardReader(scorer.job.spec.data, manifest)
    try:
        return check_against_trainer(scorer, predict, reader, predictions, request.checked_rows)
    finally:
        reader.close()


def _compare(request: ExportRequest, scorer: Scorer, manifest: DataManifest | None) -> Comparison | None:
    if manifest is None or not manifest.rows:
        return None
    champion, problem = None, ""
    if request.champion_model_uri:
        logged_model.use_tracking(request.tracking_uri)
        try:
            champion = logged_model.load_apart(request.champion_model_uri)
        except logged_model.UnusableModelError as error:
            problem = str(error)
            log.warning("champion_not_loaded", reason=problem)
    compared = compare_on(manifest, scorer, champion)
    return compared if not problem else Comparison(compared.challenger, None, problem, compared.head)
