"""The exported model: `mlflow.pyfunc.load_model` comes here (`_load_pyfunc`), and so do check and champion.

Rows go through the same encoder, the same model class and the same float32 operations as in the trainer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from torch import nn

from elastrec.platform.data.entries import DataManifest
from elastrec.platform.data.reading.encode import BadRow, RowEncoder
from elastrec.platform.data.reading.raw import RawReader
from elastrec.platform.data.reading.transform import Transform
from elastrec.platform.specs.data import FileFormat
from elastrec.platform.specs.errors import CheckpointError, DataError
from elastrec.trainers.export.artifact import Artifact
from elastrec.trainers.export.embeddings import ArtifactEmbeddings
from elastrec.trainers.export.requests import Answer, answer, table_of
from elastrec.trainers.export.signature import prediction_columns
from elastrec.trainers.models import FeatureSchema, JobHeads, build_model, embedding_tables
from elastrec.trainers.models.heads import IS_BAD, REASON
from elastrec.trainers.worker.inputs import inputs_of

_SERVING = "_MLFLOW_IS_IN_SERVING_ENVIRONMENT"
"""Set by MLflow's server."""


@dataclass(frozen=True)
class Scored:
    """Rows after scoring, in order.

    Attributes:
        prediction: float32 [B, H] of the model's heads; NaN for bad rows.
        bad: bool [B], rows that the encoder cannot use.
        batch: the trainer-ready rows that are not bad.
        pooled: float32 [B', F, R] of the rows that are not bad, features in `features`' order.
        reasons: why the bad rows are bad, by their number; not kept by `together`.
    """

    prediction: np.ndarray[Any, np.dtype[np.float32]]
    bad: np.ndarray[Any, np.dtype[np.bool_]]
    batch: pa.RecordBatch
    pooled: np.ndarray[Any, np.dtype[np.float32]]
    reasons: Mapping[int, BadRow] = field(default_factory=dict)


class Scorer:
    """Scores raw rows with an exported model.

    Args:
        artifact: the model's arrays.

    Raises:
        SpecError, DataError: the user's model or transform cannot be imported here.
        CheckpointError: the dense parameters are not those of the job file's model.
    """

    def __init__(self, artifact: Artifact) -> None:
        self.job = artifact.job
        spec = self.job.spec
        hash_sizes = {name: size for name in spec.data.tables if (size := spec.table(name).hash_size)}
        self._encoder = RowEncoder(spec.data, hash_sizes)
        columns = self._encoder.feature_columns  # rows of a request have no labels
        self._transform = Transform(spec.data.transform, columns) if spec.data.transform else None
        self._embeddings = ArtifactEmbeddings(embedding_tables(self.job), artifact, spec.sequence_features)
        self.widths = self._embeddings.widths
        self.columns = frozenset(reading.column for reading in self._encoder.readings)
        schema = FeatureSchema.from_job(self.job)
        self._model = build_model(spec.model, self._embeddings, schema, seed=spec.training.seed)
        _load_dense(self._model, artifact)
        self._model.eval()
        self.heads = JobHeads(self._model, spec.data)

    @property
    def has_transform(self) -> bool:
        """Whether a function of the user computes the columns from raw ones."""
        return self._transform is not None

    @property
    def null_tokens(self) -> tuple[str, ...]:
        """Texts of a request that count as missing: those of the log's files, also if it was converted to Parquet."""
        data = self.job.spec.data
        was_text = data.format is not FileFormat.PARQUET or any(feature.raw_encoding for feature in data.sparse)
        return data.csv.null_tokens if was_text else ()

    def raw_reader(self, manifest: DataManifest, *, with_label: bool = True) -> RawReader:
        """Reads rows for the model; without labels, the log need not have their columns any more."""
        return RawReader(self.job.spec.data, manifest, self._encoder.readings, targets=with_label)

    def score(self, rows: pa.Table, *, with_label: bool = False) -> Scored:
        """Scores raw rows `[B]`; memory grows with B.

        Args:
            with_label: the rows have labels and weights; those that training would not use count as bad.

        Raises:
            DataError: a column is missing or of an impossible type.
        """
        if self._transform is not None and rows.num_rows:
            rows = self._transform(rows)
        encoded = self._encoder.encode(rows, with_label=with_label)
        good = encoded.batch.filter(pa.array(~encoded.bad_B)) if encoded.bad_B.any() else encoded.batch
        prediction = np.full((len(encoded.bad_B), len(self.heads.names)), np.nan, np.float32)
        pooled: list[np.ndarray[Any, Any]] = []
        scores: list[np.ndarray[Any, Any]] = []
        size = self.job.spec.training.batch_size
        with torch.inference_mode():
            for begin in range(0, good.num_rows, size):
                inputs = inputs_of(good.slice(begin, size))
                result = self._model(dense_features=inputs.dense_BI, sparse_features=inputs.sparse)
                outputs = self.heads.outputs(result, len(inputs.target_BT))
                scores.append(self.heads.predictions(outputs).numpy())
                pooled.append(self._embeddings.last_pooled())
        if scores:
            prediction[~encoded.bad_B] = np.concatenate(scores)
        pooled_BX = np.concatenate(pooled) if pooled else np.empty((0, sum(self.widths.values())), np.float32)
        return Scored(prediction, encoded.bad_B, good, pooled_BX, encoded.bad_rows())


def together(parts: list[Scored]) -> Scored:
    """Consecutive pieces as one; at least one piece."""
    return Scored(
        np.concatenate([part.prediction for part in parts]),
        np.concatenate([part.bad for part in parts]),
        pa.concat_batches([part.batch for part in parts]),
        np.concatenate([part.pooled for part in parts]),
    )


def _load_dense(model: nn.Module, artifact: Artifact) -> None:
    wanted = dict(model.named_parameters())
    missing, surplus = sorted(set(wanted) - set(artifact.dense)), sorted(set(artifact.dense) - set(wanted))
    if missing or surplus:
        raise CheckpointError(
            f"dense parameters {missing} are missing and {surplus} are unknown to {type(model).__name__}; the model's "
            "class must be the one that was trained"
        )
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(torch.from_numpy(artifact.dense[name]).reshape(parameter.shape))


class PyfuncModel:
    """What `mlflow.pyfunc.load_model` wraps."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self._columns = prediction_columns(scorer.heads)

    def get_raw_model(self) -> Scorer:
        """The scorer itself, for callers that have Arrow tables."""
        return self.scorer

    def predict(self, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Predictions of raw rows: a float32 column for each head (`prediction_columns`), `is_bad` and `reason`.

        A row that cannot be used is bad: its predictions are NaN, and `reason` names the column and its value. What is
        answered for a row does not depend on the others, unless the job has a transform, which sees all of them. In
        MLflow's server the predictions of bad rows are None, since NaN is no JSON.

        Raises:
            DataError: a column is missing, or the transform fails.
        """
        if not isinstance(model_input, pd.DataFrame):
            raise DataError(f"the model scores a pandas DataFrame of raw columns, not {type(model_input).__name__}")
        if self.scorer.has_transform:
            # The user's function need not expect a request without rows.
            nothing = Answer(np.empty((0, len(self._columns)), np.float32), {})
            found = self._score(table_of(model_input, self.scorer.null_tokens)) if len(model_input) else nothing
        else:
            found = answer(self._score, self._needed(model_input), len(self._columns), self.scorer.null_tokens)
        index = model_input.index
        reasons = np.full(len(index), None, object)
        for row, reason in found.reasons.items():
            reasons[row] = reason
        is_bad = np.zeros(len(index), np.bool_)
        is_bad[list(found.reasons)] = True
        columns: dict[str, Any] = {name: found.prediction_BH[:, head] for head, name in enumerate(self._columns)}
        if found.reasons and os.environ.get(_SERVING):
            for name, predictions in columns.items():
                objects = predictions.astype(object)
                objects[is_bad] = None
                columns[name] = _objects(objects, index)
        return pd.DataFrame({**columns, IS_BAD: is_bad, REASON: _objects(reasons, index)}, index=index)

    def _needed(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Without columns that the model does not read, whose values may be of any type."""
        needed = [str(name) in self.scorer.columns for name in rows.columns]
        return rows if all(needed) else rows.loc[:, needed]

    def _score(self, rows: pa.Table) -> Answer:
        scored = self.scorer.score(rows)
        return Answer(scored.prediction, {row: bad.reason for row, bad in scored.reasons.items()})


def _objects(values: np.ndarray[Any, Any], index: pd.Index[Any]) -> pd.Series[Any]:
    """A column in which None stays: pandas would make NaN of it, beside text as beside numbers."""
    return pd.Series(values, index, dtype=object)


def _load_pyfunc(data_path: str) -> PyfuncModel:
    """MLflow's entry point: the loader module of the pyfunc flavour."""
    return PyfuncModel(Scorer(Artifact(Path(data_path))))
