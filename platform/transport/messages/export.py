"""The request to the evaluator pod and its result.

The pod does not serve calls: the request is one of its files (`EXPORT_FILE`), and the result is the last line of its
standard output, after `RESULT_PREFIX`.
"""

from __future__ import annotations

import msgspec

from elastrec.platform.specs.errors import JobFailedError

EXPORT_FILE = "export.json"
"""The name of the request in the pod's file folder."""
EXIT_HISTORY = 3
"""Exit code of an evaluator pod that could not reach MLflow, or was refused by it, without a problem of the model."""
RESULT_PREFIX = "RESULT "
"""Prefix of the line of standard output with the ExportResult."""


class ExportRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Build, check and log the model of one finished job, and score the champion on the same rows.

    Attributes:
        job_json: the TrainingJob as JSON text.
        job_id: name of this run of the job.
        store_uri: root of the checkpoint store, as in the job file.
        record_uri: the job's final checkpoint record.
        predictions_uri: folder of the trainer's predictions (see `predictions_folder`); empty: no check possible.
        evaluation_manifest_uri: rows on which both models are scored; empty: nothing is scored.
        tracking_uri, run_id: the run to which the model is logged; both empty: it is only written to `artifact_uri`.
        champion_model_uri: an MLflow model URI such as `models:/click@champion`; empty: there is none.
        registered_model: name under which the model would be registered (the caller registers, after the gate).
        artifact_uri: local folder to write the model to as well; empty: a temporary one.
        checked_rows: number of the trainer's predictions with which the model is compared.
    """

    job_json: str
    job_id: str
    store_uri: str
    record_uri: str
    predictions_uri: str = ""
    evaluation_manifest_uri: str = ""
    tracking_uri: str = ""
    run_id: str = ""
    champion_model_uri: str = ""
    registered_model: str = ""
    artifact_uri: str = ""
    checked_rows: int = 10_000


class EvaluationResult(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one model's judged output on the evaluation rows. None where a figure is not defined, or belongs to
    another kind of label.

    Attributes:
        only_label: the label of all rows; None if they have several, or there are no rows.
    """

    samples: int
    auc: float | None
    normalized_entropy: float | None
    log_loss: float | None
    mean_squared_error: float | None = None
    normalized_error: float | None = None
    only_label: float | None = None


class ExportResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the evaluator pod.

    Attributes:
        model_uri: MLflow URI of the logged model (`models:/m-...`), or the local folder without tracking.
        checked_rows: rows compared with the trainer's predictions.
        largest_difference: the largest |artifact − trainer| probability among them.
        challenger: the new model, scored by the artifact on the evaluation rows.
        champion: the champion on the same rows, None when there is none.
        head: the compared output; empty: the first one, with a binary label.
        champion_problem: why an existing champion could not be scored on these rows; otherwise empty.
    """

    model_uri: str
    checked_rows: int
    largest_difference: float
    challenger: EvaluationResult | None = None
    champion: EvaluationResult | None = None
    head: str = ""
    champion_problem: str = ""
    artifact_bytes: int = 0


def encode_request(request: ExportRequest) -> str:
    """The text of `EXPORT_FILE`."""
    return msgspec.json.encode(request).decode()


def decode_request(text: str | bytes) -> ExportRequest:
    """Reads `EXPORT_FILE`.

    Raises:
        JobFailedError: the text is not an ExportRequest.
    """
    try:
        return msgspec.json.decode(text, type=ExportRequest)
    except (msgspec.MsgspecError, ValueError) as error:
        raise JobFailedError(f"{EXPORT_FILE} is no export request: {error}") from error


def result_line(result: ExportResult) -> str:
    """The line that the evaluator pod prints last."""
    return RESULT_PREFIX + msgspec.json.encode(result).decode()


def parse_result(output: str) -> ExportResult:
    """Finds the result in the evaluator pod's output; the last one wins.

    Raises:
        JobFailedError: the output holds no result, or one that cannot be read.
    """
    lines = [line for line in output.splitlines() if line.startswith(RESULT_PREFIX)]
    if not lines:
        raise JobFailedError("the evaluator pod ended without a result; its log says why")
    try:
        return msgspec.json.decode(lines[-1][len(RESULT_PREFIX) :], type=ExportResult)
    except (msgspec.MsgspecError, ValueError) as error:
        raise JobFailedError(f"the evaluator pod's result cannot be read: {error}") from error
