"""fit: computes the statistics of steps before training, once, and writes them into the data section.

Training, evaluation, checkpoints and the exported model use these statistics and do not fit them again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from elastrec.platform.data.entries import DataManifest
from elastrec.platform.data.features.plan import plans_of
from elastrec.platform.data.features.steps import Unfitted, run_steps
from elastrec.platform.data.files import errors_naming, read_bytes
from elastrec.platform.data.reading.encode import RowEncoder
from elastrec.platform.data.reading.raw import RawReader
from elastrec.platform.specs.data import SparseFeature, TrainingData
from elastrec.platform.specs.errors import DataError
from elastrec.platform.specs.features import MOST_VALUES, Standardize, Steps, Vocabulary, fitted_as, is_unfitted

FIT_ROWS = 1_048_576
"""Number of rows for the statistics; of a larger log, blocks of rows evenly distributed over its files."""
_BLOCK_ROWS = 16_384


@dataclass
class Moments:
    """Mean and variance of numbers that are added piece by piece (Chan, Golub and LeVeque 1979).

    Attributes:
        lowest, highest: of the numbers. Of equal numbers, rounding may leave a variance above 0.
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    lowest: float = math.inf
    highest: float = -math.inf

    def add(self, values: NDArray[np.float64]) -> None:
        """Further numbers [L]."""
        if not len(values):
            return
        # Values beyond float64 become infinite, and `fit` refuses them.
        with np.errstate(over="ignore", invalid="ignore"):
            mean = float(values.mean())
            squares = float(np.square(values - mean).sum())
        count = self.count + len(values)
        apart = mean - self.mean
        self.squares += squares + apart * apart * self.count * len(values) / count
        self.mean += apart * len(values) / count
        self.count = count
        self.lowest = min(self.lowest, float(values.min()))
        self.highest = max(self.highest, float(values.max()))

    @property
    def deviation(self) -> float:
        """The variance of the numbers themselves, not an estimate for a population."""
        return math.sqrt(self.squares / self.count) if self.lowest < self.highest else 0.0


def unfitted_features(data: TrainingData) -> list[str]:
    """Names of features with a step whose statistics are not known yet."""
    return [name for name, steps in data.features.items() if any(map(is_unfitted, steps))]


def with_vocabularies(data: TrainingData) -> TrainingData:
    """The data section, with the values of vocabulary files.

    Raises:
        DataError: a file cannot be read, is not UTF-8, or has no values, too many, or one that does not fit.
    """
    sparse = {feature.name: feature for feature in data.sparse}
    features = {
        name: tuple(_with_values(step, sparse[name]) if isinstance(step, Vocabulary) else step for step in steps)
        for name, steps in data.features.items()
    }
    return data if features == data.features else data.model_copy(update={"features": features})


def _with_values(step: Vocabulary, feature: SparseFeature) -> Vocabulary:
    if step.file is None:
        return step
    place = f"data.features.{feature.name}: the vocabulary {step.file}"
    try:
        # Not `splitlines`, which also ends lines inside values: at form feeds, U+0085 or U+2028.
        lines = re.split(r"\r\n|\r|\n", read_bytes(step.file).decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{place} is no UTF-8 ({error}); write it again in UTF-8") from error
    if not lines[-1]:
        lines.pop()
    if not 0 < len(lines) <= MOST_VALUES:
        raise DataError(f"{place} has {len(lines):,} lines; allowed: 1 to {MOST_VALUES:,}; use a step hash for more")
    values: list[str | int] = list(lines)
    if not feature.is_text:
        try:
            values = [int(line) for line in lines]
        except ValueError as error:
            raise DataError(f"{place} holds a line that is no whole number ({error}), as `encoding` asks") from error
    elif "" in lines:
        raise DataError(f"{place} has an empty line {lines.index('') + 1}; remove it")
    try:
        return Vocabulary(step="vocabulary", values=tuple(values), out_of_vocabulary=step.out_of_vocabulary)
    except ValidationError as error:
        raise DataError(f"{place}: {error.errors()[0]['msg']}; correct the file") from error


def fit(
    data: TrainingData, manifest: DataManifest, known: Mapping[str, Steps] | None = None, *, rows: int | None = None
) -> TrainingData:
    """The data section, with the statistics of every step that has none.

    Args:
        manifest: the rows to train on.
        known: steps of the model from which training continues: a feature with the same steps keeps their statistics,
            because the weights were trained with them.
        rows: number of rows to use; None: FIT_ROWS.

    Raises:
        DataError: rows cannot be read, or a feature has no values, or only one.
    """
    features = dict(data.features)
    for name in unfitted_features(data):
        features[name] = fitted_as(features[name], (known or {}).get(name, ())) or features[name]
    rest = data.model_copy(update={"features": features})
    most = FIT_ROWS if rows is None else rows
    for name, moments in _moments(rest, manifest, unfitted_features(rest), most).items():
        if not moments.count or not moments.deviation:
            found = "no value at all" if not moments.count else f"the value {moments.lowest:g} only"
            raise DataError(
                f"data.features.{name}: found {found} in {min(manifest.rows, most):,} rows, expected different "
                "numbers to standardize; remove the feature, or give the step mean and scale"
            )
        if not math.isfinite(moments.deviation):
            raise DataError(
                f"data.features.{name}: found numbers whose squares are beyond float64, expected smaller ones to "
                "standardize; put a step clip or log1p before, or give the step mean and scale"
            )
        fitted = Standardize(step="standardize", mean=moments.mean, scale=moments.deviation)
        features[name] = tuple(fitted if is_unfitted(step) else step for step in features[name])
    return data.model_copy(update={"features": features})


def _moments(data: TrainingData, manifest: DataManifest, names: Sequence[str], most: int) -> dict[str, Moments]:
    found = {name: Moments() for name in names}
    if not names:
        return found
    # Only their columns are read.
    narrow = data.model_copy(
        update={
            "dense": tuple(feature for feature in data.dense if feature.name in names),
            "sparse": tuple(feature for feature in data.sparse if feature.name in names),
            "features": {name: data.features[name] for name in names},
        }
    )
    encoder = RowEncoder(narrow)
    steps = {
        name: tuple(takewhile(lambda step: not isinstance(step, Unfitted), plan.steps))
        for name, plan in plans_of(narrow, names).items()
    }
    with closing(RawReader(narrow, manifest, encoder.readings)) as raw:
        for start, length in _blocks(manifest.rows, most):
            for piece in raw.read(start, length):
                with errors_naming(piece.file.uri):
                    read = encoder.read(piece.table)
                good = np.flatnonzero(~read.bad_B)
                for name, moments in found.items():
                    column = run_steps(encoder.source(name, read).take(good), steps[name])
                    moments.add(column.values if column.missing is None else column.values[~column.missing])
    return found


def _blocks(rows: int, most: int) -> list[tuple[int, int]]:
    """(first row, rows) of each block for fitting."""
    if rows <= most:
        return [(0, rows)]
    size = min(_BLOCK_ROWS, most)
    return [(int(start), size) for start in np.linspace(0, rows - size, most // size)]
