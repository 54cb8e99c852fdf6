"""Challenger and champion on the same evaluation rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import structlog

from elastrec.platform.data.entries import DataManifest
from elastrec.platform.data.files import is_read_error
from elastrec.platform.data.metrics.heads import HeadSketches, Predicted
from elastrec.platform.data.reading.batches import targets_of
from elastrec.platform.data.reading.raw import RawReader
from elastrec.platform.specs.errors import DataError
from elastrec.platform.transport.messages.export import EvaluationResult
from elastrec.trainers.evaluation.figures import evaluation_result
from elastrec.trainers.export.own_code import OwnCode
from elastrec.trainers.export.scorer import Scored, Scorer, together
from elastrec.trainers.export.signature import PROBABILITY, raw_frame

log = structlog.get_logger(__name__)

_PIECE_ROWS = 32_768
_UNUSABLE_SHARE = 0.01
"""A champion that cannot use a larger share of the rows than this is not compared."""

FloatArray = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Comparison:
    """`champion` is None without a champion, or when it could not be scored: then `problem` says why.

    Attributes:
        head: the compared output; empty: the first one, with a binary label.
    """

    challenger: EvaluationResult
    champion: EvaluationResult | None
    problem: str
    head: str = ""


class Champion:
    """A model loaded by MLflow that scores the rows of a manifest.

    A model of elastrec reads the files by its own job file, so that later features do not affect it; any other pyfunc
    gets the challenger's raw columns. Of a model with one head, that head is used under any name; of one with several,
    the head with the compared name.

    Args:
        code: the model's own version of the user's code.
        raw: reads the challenger's columns.
        head: name of the compared output.
    """

    def __init__(
        self, model: Any, code: OwnCode, manifest: DataManifest, challenger: Scorer, raw: RawReader, head: str
    ) -> None:
        try:
            found = model.get_raw_model()
        except NotImplementedError:  # a pyfunc of another kind is asked through predict
            found = None
        self._scorer = found if isinstance(found, Scorer) else None
        self._model = model
        self._code = code
        self._head = head
        self._data = challenger.job.spec.data
        with code.used():  # the reader imports the user's transform
            self._raw = self._scorer.raw_reader(manifest, with_label=False) if self._scorer else raw

    def score(self, start: int, length: int, wanted_B: np.ndarray[Any, np.dtype[np.bool_]]) -> FloatArray:
        """Predictions of the wanted rows among `length` rows from `start`; NaN for those that this model cannot use.

        Raises:
            DataError: a column that it needs is missing, or it has no such head.
        """
        with self._code.used():
            return self._scored(start, length, wanted_B)

    def _scored(self, start: int, length: int, wanted_B: np.ndarray[Any, np.dtype[np.bool_]]) -> FloatArray:
        if self._scorer is None:
            frames, begin = [], 0
            for piece in self._raw.read(start, length, transformed=False):
                wanted = wanted_B[begin : begin + piece.table.num_rows]
                frames.append(raw_frame(self._data, piece.table.filter(pa.array(wanted))))
                begin += piece.table.num_rows
            return _predictions(self._model.predict(pd.concat(frames, ignore_index=True)), self._head)
        scored = _score(self._scorer, self._raw, start, length, with_label=False)
        names = self._scorer.heads.names
        if len(names) > 1 and self._head not in names:
            raise DataError(f"the champion has no output {self._head!r}; it has {', '.join(names)}")
        return scored.prediction[wanted_B, names.index(self._head) if len(names) > 1 else 0]


def compare_on(manifest: DataManifest, challenger: Scorer, loaded: tuple[Any, OwnCode] | None) -> Comparison:
    """Scores every evaluation row with both models, and compares them on the rows that both can use.

    A champion that fails, or cannot use more than `_UNUSABLE_SHARE` of the challenger's rows, does not stop the
    challenger: the reason is reported, and the challenger is scored alone. But without memory or without the files,
    nothing is compared, because a later try may succeed.

    Args:
        loaded: the champion, from `logged_model.load_apart`.

    Raises:
        DataError: the challenger cannot read the rows, or the files cannot be read.
    """
    raw = challenger.raw_reader(manifest)
    heads = challenger.heads
    index = heads.names.index(challenger.job.spec.gate.head) if challenger.job.spec.gate.head else 0
    head, kind = heads.heads[index], heads.kinds[index]
    labels = [label.name for label in challenger.job.spec.data.label_columns]
    champion = Champion(*loaded, manifest, challenger, raw, head.name) if loaded is not None else None
    alone, ours, theirs = HeadSketches(), HeadSketches(), HeadSketches()
    rows = unusable = 0
    problem = ""
    for start in range(0, manifest.rows, _PIECE_ROWS):
        length = min(_PIECE_ROWS, manifest.rows - start)
        scored = _score(challenger, raw, start, length, with_label=True)
        label_B = targets_of(scored.batch)[:, labels.index(head.label_name)]
        ours_B = scored.prediction[~scored.bad, index]
        alone.update([Predicted(head.name, kind, ours_B, label_B)])
        rows += len(ours_B)
        if champion is not None and not problem:
            try:
                theirs_B = champion.score(start, length, ~scored.bad)
                both_B = ~np.isnan(theirs_B)
                unusable += len(both_B) - int(both_B.sum())
                for sketches, prediction_B in ((ours, ours_B), (theirs, theirs_B)):
                    sketches.update([Predicted(head.name, kind, prediction_B[both_B], label_B[both_B])])
            except MemoryError:
                raise
            except Exception as error:  # another team's model, other columns: anything may happen inside
                if is_read_error(error):
                    raise  # which does not depend on the champion
                problem = f"{type(error).__name__}: {error}"
                log.warning("champion_not_scored", reason=problem)
    if unusable:
        log.warning("rows_unusable_for_the_champion", rows=unusable, of=rows)
        if unusable > _UNUSABLE_SHARE * rows:
            problem = problem or f"it cannot use {unusable} of the {rows} rows"
    judged = "" if index == 0 and kind == "binary" else head.name
    scored_champion = champion is not None and not problem
    return Comparison(
        evaluation_result((ours if scored_champion else alone).heads[head.name]),
        evaluation_result(theirs.heads[head.name]) if scored_champion else None,
        problem,
        judged,
    )


def _score(scorer: Scorer, raw: RawReader, start: int, length: int, *, with_label: bool) -> Scored:
    pieces = raw.read(start, length, transformed=False)
    return together([scorer.score(piece.table, with_label=with_label) for piece in pieces])


def _predictions(answer: Any, head: str) -> FloatArray:
    if isinstance(answer, pd.DataFrame):
        name = next((name for name in (head, PROBABILITY) if name in answer.columns), answer.columns[-1])
        answer = answer[name]
    return np.asarray(answer, np.float32).reshape(-1)
