"""The check that the exported model equals the trained one: both score the same rows; differences are located."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from elastrec.platform.data.reading.reader import ShardReader
from elastrec.platform.specs.data import DENSE_COLUMN
from elastrec.platform.specs.errors import JobFailedError
from elastrec.trainers.export.scorer import Scored, Scorer, together
from elastrec.trainers.export.signature import prediction_columns, raw_frame
from elastrec.trainers.worker.predictions import Predictions

TOLERANCE = 1e-6


@dataclass(frozen=True)
class Checked:
    """Rows compared, and the largest absolute difference of their predictions."""

    rows: int
    largest_difference: float


def check_against_trainer(
    scorer: Scorer,
    predict: Callable[[pd.DataFrame], pd.DataFrame],
    reader: ShardReader,
    predictions: list[Predictions],
    rows: int,
) -> Checked:
    """Scores raw rows through the loaded MLflow model and compares with what the trainer predicted for them.

    Args:
        scorer: the loaded model's inner part, used only to locate differences.
        predict: of the loaded MLflow model; raw columns to one column per head.
        reader: of the evaluation manifest.
        predictions: of the workers, in the order of rows.
        rows: maximum number to compare.

    Raises:
        JobFailedError: a prediction differs by TOLERANCE or more, relatively for numbers beyond ±1; names the head and
        the first different feature.
    """
    compared, largest = 0, 0.0
    data, columns = scorer.job.spec.data, prediction_columns(scorer.heads)
    for shard in predictions:
        if compared >= rows:
            break
        pieces = list(reader.read_raw(shard.metadata.start, shard.metadata.length))
        scores = [scorer.score(piece, with_label=True) for piece in pieces]
        scored = together(scores)
        usable = int((~scored.bad).sum())
        if usable != len(shard.prediction):
            raise JobFailedError(
                f"the export cannot be checked: the trainer predicted {len(shard.prediction)} of the rows from "
                f"{shard.metadata.start}, the exported model reads {usable}; did the evaluation files change?"
            )
        taken = min(usable, rows - compared)
        if not taken:
            continue
        # One frame per piece: pieces of a text file may differ in the types of their columns.
        frames = [
            raw_frame(data, piece.filter(pa.array(~part.bad))) for piece, part in zip(pieces, scores, strict=True)
        ]
        answer = predict(pd.concat(frames, ignore_index=True)[:taken])
        ours_BH = np.stack([np.asarray(answer[name], np.float64) for name in columns], axis=1)
        theirs_BH = np.asarray(shard.prediction[:taken], np.float64)
        difference_BH = np.abs(ours_BH - theirs_BH) / np.maximum(1.0, np.abs(theirs_BH))
        if not (difference_BH < TOLERANCE).all():
            row, head = (int(index[0]) for index in np.nonzero(~(difference_BH < TOLERANCE)))
            raise JobFailedError(
                f"the exported model differs from the trained one: row {shard.metadata.start} + {row} has the "
                f"{columns[head]} {ours_BH[row, head]:.9f}, the trainer gave {theirs_BH[row, head]:.9f}; "
                + first_difference(scorer, scored, shard, row)
            )
        compared += taken
        largest = max(largest, float(difference_BH.max()))
    return Checked(compared, largest)


def first_difference(scorer: Scorer, scored: Scored, shard: Predictions, row: int) -> str:
    """The feature of one row that differs between both sides: first by its values, then by its pooled rows."""
    data = scorer.job.spec.data
    for position, feature in enumerate(data.dense):
        ours, theirs = (
            float(batch.column(DENSE_COLUMN)[row].as_py()[position]) for batch in (scored.batch, shard.batch)
        )
        if ours != theirs:
            return f"first feature that differs: {feature.name!r}, exported {ours}, trained {theirs}"
    for sparse in data.sparse:
        ours, theirs = (batch.column(sparse.name)[row].as_py() for batch in (scored.batch, shard.batch))
        if ours != theirs:
            return f"first feature that differs: {sparse.name!r}, exported ids {ours}, trained ids {theirs}"
    left = _by_feature(scored.pooled[row], list(scorer.widths), scorer.widths)
    right = _by_feature(shard.pooled[row], shard.metadata.features, scorer.widths)
    for name in shard.metadata.features:
        gap = float(np.abs(left[name] - right[name]).max(initial=0.0))
        if gap > TOLERANCE:
            return f"first feature that differs: {name!r}, its pooled embedding by {gap:.3g}"
    unseen = [name for name in scorer.job.spec.sequence_features if name not in shard.metadata.features]
    rest = f", or rows of {', '.join(unseen)}, which are not pooled before the model" if unseen else ""
    return f"all features agree, so the dense parameters differ{rest}"


def _by_feature(
    pooled_X: np.ndarray[Any, Any], names: list[str], widths: Mapping[str, int]
) -> dict[str, np.ndarray[Any, Any]]:
    """The pooled rows of features that lie side by side."""
    ends = np.cumsum([widths[name] for name in names])
    return dict(zip(names, np.split(pooled_X, ends[:-1]), strict=True))
