"""HeadSketches: the metrics of each output of a model, by name. Workers send them, and the master merges them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from elastrec.platform.data.metrics.binary import EVALUATION_BINS, BinaryMetricsSketch
from elastrec.platform.data.metrics.values import ValueMetricsSketch
from elastrec.platform.specs.errors import DataError
from elastrec.platform.specs.text.decoders import msgpack_decoder

Kind = Literal["binary", "value"]
Sketch = BinaryMetricsSketch | ValueMetricsSketch
_CLASSES: dict[Kind, type[Sketch]] = {"binary": BinaryMetricsSketch, "value": ValueMetricsSketch}
FloatArray = NDArray[np.float32]


class Predicted(NamedTuple):
    """The predictions of one output of a model, a *head*, for the rows of a minibatch.

    Attributes:
        prediction_B: float32 [B], probabilities if the label is binary.
        label_B: float32 [B].
    """

    head: str
    kind: Kind
    prediction_B: FloatArray
    label_B: FloatArray


@dataclass(frozen=True)
class Figures:
    """The metrics of one head; None if a metric is undefined, or is one of the other kind of label.

    Attributes:
        calibration: mean prediction over mean label.
        only_label: the label of all rows; None if they have several, or there are no rows.
    """

    rows: int
    auc: float | None = None
    normalized_entropy: float | None = None
    log_loss: float | None = None
    mean_squared_error: float | None = None
    normalized_error: float | None = None
    calibration: float | None = None
    only_label: float | None = None


class _Head(msgspec.Struct, frozen=True, array_like=True):
    name: str
    kind: Kind
    sketch: bytes


class _Encoded(msgspec.Struct, frozen=True, array_like=True):
    version: Literal[1]
    heads: list[_Head]


_decoder = msgpack_decoder(_Encoded)


class HeadSketches:
    """A sketch for each head, in the order of the model's heads.

    Args:
        bins: of the sketches of binary labels.
    """

    def __init__(self, bins: int = EVALUATION_BINS) -> None:
        self._bins = bins
        self._sketches: dict[str, Sketch] = {}

    @property
    def heads(self) -> Mapping[str, Sketch]:
        """Sketches by head, the model's first head first; empty before the first update."""
        return self._sketches

    def first(self) -> Sketch | None:
        """The sketch of the model's first head; None before the first update."""
        return next(iter(self._sketches.values()), None)

    def update(self, predicted: Iterable[Predicted]) -> None:
        """Adds rows.

        Raises:
            DataError: a prediction or label is not allowed for its kind, or the kind of a head changed; names the head.
        """
        for head, kind, prediction_B, label_B in predicted:
            sketch = self._of(head, kind)
            try:
                sketch.update(prediction_B, label_B)
            except DataError as error:
                raise DataError(f"head {head!r}: {error}") from error

    def merge_encoded(self, encoded: bytes) -> None:
        """Adds the rows of other sketches.

        Args:
            encoded: of `encode`.

        Raises:
            DataError: the bytes were not made by `encode`, or a head is of another kind or its sketch of another number
                of bins; the heads before it were added.
        """
        for head in _read(encoded):
            self._of(head.name, head.kind).merge_encoded(head.sketch)

    def encode(self) -> bytes:
        """Compact bytes."""
        heads = [_Head(name, _kind(sketch), sketch.encode()) for name, sketch in self._sketches.items()]
        return msgspec.msgpack.encode(_Encoded(1, heads))

    @classmethod
    def decode(cls, encoded: bytes) -> HeadSketches:
        """Decodes a result of `encode`.

        Raises:
            DataError: the bytes are not sketches of heads.
        """
        sketches = cls()
        for head in _read(encoded):
            sketch = sketches._sketches[head.name] = _CLASSES[head.kind].decode(head.sketch)
            if isinstance(sketch, BinaryMetricsSketch):
                sketches._bins = sketch.bins
        return sketches

    def _of(self, head: str, kind: Kind) -> Sketch:
        sketch = self._sketches.get(head)
        if sketch is None:
            sketch = BinaryMetricsSketch(self._bins) if kind == "binary" else ValueMetricsSketch()
            self._sketches[head] = sketch
        elif _kind(sketch) != kind:
            raise DataError(f"head {head!r}: {kind} is not allowed; allowed: {_kind(sketch)}, which it was before")
        return sketch

    def __eq__(self, other: object) -> bool:
        return self._sketches == other._sketches if isinstance(other, HeadSketches) else NotImplemented


def figures_of(sketch: Sketch) -> Figures:
    """The figures of one head."""
    label = sketch.base_rate if isinstance(sketch, BinaryMetricsSketch) else sketch.mean_label
    prediction = sketch.mean_prediction
    calibration = prediction / label if label and prediction is not None else None
    if isinstance(sketch, BinaryMetricsSketch):
        return Figures(
            rows=sketch.rows,
            auc=sketch.auc(),
            normalized_entropy=sketch.normalized_entropy(),
            log_loss=sketch.log_loss(),
            calibration=calibration,
            only_label=label if label in (0.0, 1.0) else None,
        )
    normalized_error = sketch.normalized_error()
    return Figures(
        rows=sketch.rows,
        mean_squared_error=sketch.mean_squared_error(),
        normalized_error=normalized_error,
        calibration=calibration,
        only_label=label if normalized_error is None else None,
    )


def _kind(sketch: Sketch) -> Kind:
    return "binary" if isinstance(sketch, BinaryMetricsSketch) else "value"


def _read(encoded: bytes) -> list[_Head]:
    try:
        return _decoder.decode(encoded).heads
    except msgspec.MsgspecError as error:
        raise DataError(f"these {len(encoded)} bytes are no sketches of heads: {error}") from error
