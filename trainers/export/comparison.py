"""Challenger and champion on the same evaluation rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import structlog

from elastrec.platform.data.batches import label_of
from elastrec.platform.data.manifest import DataManifest
from elastrec.platform.data.raw import RawReader
from elastrec.platform.data.sketch import BinaryMetricsSketch
from elastrec.platform.specs.errors import DataError
from elastrec.platform.transport.export_messages import EvaluationResult
from elastrec.trainers.evaluation.figures import evaluation_result
from elastrec.trainers.export.scorer import Scored, Scorer, together
from elastrec.trainers.export.signature import PROBABILITY, raw_frame

log = structlog.get_logger(__name__)

_PIECE_ROWS = 32_768

FloatArray = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Comparison:
    """`champion` is None without a champion, or when it could not be scored: then `problem` says why."""

    challenger: EvaluationResult
    champion: EvaluationResult | None
    problem: str


class Champion:
    """A model loaded by MLflow that scores the rows of a manifest.

    A model of elastrec reads the files by its own job file, so that a feature added since does not disturb it; any
    other pyfunc gets the challenger's raw columns.
    """

    def __init__(self, model: Any, manifest: DataManifest, challenger: Scorer, raw: RawReader) -> None:
        try:
            found = model.get_raw_model()
        except NotImplementedError:  # a pyfunc of another kind is asked through predict
            found = None
        self._scorer = found if isinstance(found, Scorer) else None
        self._model = model
        self._data = challenger.job.spec.data
        self._raw = RawReader(self._scorer.job.spec.data, manifest) if self._scorer else raw

    def score(self, start: int, length: int, wanted_B: np.ndarray[Any, np.dtype[np.bool_]]) -> FloatArray:
        """Probabilities of the wanted rows among `length` rows from `start`.

        Raises:
            DataError: a wanted row is unusable for this model, or a column it needs is missing.
        """
        if self._scorer is None:
            frames, begin = [], 0
            for piece in self._raw.read(start, length, transformed=False):
                wanted = wanted_B[begin : begin + piece.table.num_rows]
                frames.append(raw_frame(self._data, piece.table.filter(pa.array(wanted))))
                begin += piece.table.num_rows
            return _probabilities(self._model.predict(pd.concat(frames, ignore_index=True)))
        scored = _score(self._scorer, self._raw, start, length, with_label=False)
        unusable = scored.bad & wanted_B
        if unusable.any():
            raise DataError(f"evaluation row {start + int(np.flatnonzero(unusable)[0])} is unusable for the champion")
        return scored.probability[wanted_B]


def compare_on(manifest: DataManifest, challenger: Scorer, champion_model: Any | None) -> Comparison:
    """Scores every evaluation row with both models.

    A champion that fails does not stop the challenger: the reason is told and the challenger stands alone.

    Raises:
        DataError: the challenger cannot read the rows.
    """
    raw = RawReader(challenger.job.spec.data, manifest)
    champion = Champion(champion_model, manifest, challenger, raw) if champion_model is not None else None
    ours, theirs = BinaryMetricsSketch(), BinaryMetricsSketch()
    problem = ""
    for start in range(0, manifest.rows, _PIECE_ROWS):
        length = min(_PIECE_ROWS, manifest.rows - start)
        scored = _score(challenger, raw, start, length, with_label=True)
        label_B = label_of(scored.batch)
        ours.update(scored.probability[~scored.bad], label_B)
        if champion is not None and not problem:
            try:
                theirs.update(champion.score(start, length, ~scored.bad), label_B)
            except Exception as error:  # another team's model, other columns: anything may happen inside
                problem = f"{type(error).__name__}: {error}"
                log.warning("champion_not_scored", reason=problem)
    scored_champion = champion is not None and not problem
    return Comparison(evaluation_result(ours), evaluation_result(theirs) if scored_champion else None, problem)


def _score(scorer: Scorer, raw: RawReader, start: int, length: int, *, with_label: bool) -> Scored:
    pieces = raw.read(start, length, transformed=False)
    return together([scorer.score(piece.table, with_label=with_label) for piece in pieces])


def _probabilities(answer: Any) -> FloatArray:
    if isinstance(answer, pd.DataFrame):
        name = PROBABILITY if PROBABILITY in answer.columns else answer.columns[-1]
        answer = answer[name]
    return np.asarray(answer, np.float32).reshape(-1)
