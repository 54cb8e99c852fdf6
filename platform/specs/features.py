"""Steps: transformations of a column's values to the input of the model, and the rules for their order.

Values are of one of two kinds. Numbers are float64 and may be missing; ids are 64-bit integers, which a feature's
`encoding` makes from a column, and may be missing, too. The input and the output of a step are each of one kind.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, StrictFloat, StrictInt, StrictStr, ValidationInfo, field_validator, model_validator

from elastrec.platform.specs.base import Spec, number_not_boolean
from elastrec.platform.specs.text.patterns import Location
from elastrec.platform.specs.text.some import repeated

FeatureName = Annotated[str, Field(min_length=1, max_length=200)]
MOST_VALUES = 100_000
"""Limit of a vocabulary: it is part of the job file, which every pod and the exported model hold."""
MOST_BOUNDARIES = 10_000
LARGEST_ID = 2**63 - 1
_SHOWN_VALUES = 4


class Kind(StrEnum):
    """The kind of a feature's values between two of its steps."""

    NUMBER = "numbers"
    ID = "ids"


class Step(Spec):
    """The base of all steps."""

    @property
    def summary(self) -> str:
        """The step with its fields that differ from the defaults, for people; of long lists only the length."""
        fields = {name: value for name, value in self if name != "step" and value != _default(type(self), name)}
        texts = [f"{name}={_shown(value)}" for name, value in fields.items()]
        if is_unfitted(self):
            texts.append("to be read" if fields else "to be fitted")
        return f"{getattr(self, 'step', '')}({', '.join(texts)})" if texts else getattr(self, "step", "")

    # Every field but `step`: pydantic allows no such validator of the field that distinguishes the steps.
    @field_validator(
        "low", "high", "mean", "scale", "size", "seed", "count", "out_of_vocabulary", "boundaries",
        mode="before", check_fields=False,
    )  # fmt: skip
    @classmethod
    def _no_boolean_as_number(cls, value: Any, info: ValidationInfo) -> Any:
        return number_not_boolean(cls, value, info)


class FillNull(Step):
    """A missing value becomes `value`; so does an empty list, which then holds that one value."""

    step: Literal["fill_null"]
    """Which step it is."""
    value: StrictInt | StrictFloat | StrictStr
    """A number before steps that take numbers; otherwise an id, or text that is encoded like the text of the column."""


class MissingIndicator(Step):
    """1 where the value is missing or the list empty, else 0. Nothing is missing afterwards."""

    step: Literal["missing_indicator"]
    """Which step it is."""


class Clip(Step):
    """Numbers below `low` become `low`, those above `high` become `high`."""

    step: Literal["clip"]
    """Which step it is."""
    low: float | None = None
    """Absent: no lower limit."""
    high: float | None = None
    """Absent: no upper limit."""

    @model_validator(mode="after")
    def _consistent(self) -> Clip:
        if self.low is None and self.high is None:
            raise ValueError("set low, high or both")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low {self.low:g} is above high {self.high:g}")
        return self


class Log1p(Step):
    """sign(x) * log(1 + |x|)."""

    step: Literal["log1p"]
    """Which step it is."""


class Standardize(Step):
    """(x - mean) / scale. If `mean` and `scale` are absent, they are the mean and the standard deviation of the output
    of the previous steps on the training rows, fitted once before training and stored in the job."""

    step: Literal["standardize"]
    """Which step it is."""
    mean: float | None = None
    """Absent together with `scale`: fitted."""
    scale: Annotated[float, Field(gt=0)] | None = None
    """Absent together with `mean`: fitted."""

    @model_validator(mode="after")
    def _consistent(self) -> Standardize:
        if (self.mean is None) != (self.scale is None):
            raise ValueError("set both mean and scale, or neither; without them they are fitted on the training rows")
        return self


class Bucketize(Step):
    """A number becomes the id of its bucket: the number of boundaries at or below it."""

    step: Literal["bucketize"]
    """Which step it is."""
    boundaries: Annotated[tuple[float, ...], Field(min_length=1, max_length=MOST_BOUNDARIES)]
    """Increasing numbers."""

    @field_validator("boundaries")
    @classmethod
    def _rising(cls, boundaries: tuple[float, ...]) -> tuple[float, ...]:
        for index, (low, high) in enumerate(itertools.pairwise(boundaries)):
            if low >= high:
                raise ValueError(f"numbers that rise; number {index + 2} is {high:g} and the one before {low:g}")
        return boundaries


class Hash(Step):
    """An id becomes xxh3-64 of its 8 bytes (little-endian) with `seed`, modulo `size`."""

    step: Literal["hash"]
    """Which step it is."""
    size: Annotated[int, Field(ge=1, le=LARGEST_ID)]
    """Ids are 0 to `size` - 1."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """The seed of the hash; another seed gives other collisions."""


class Cross(Step):
    """One id for each combination of values of several categories. A row has one value in each category."""

    step: Literal["cross"]
    """Which step it is."""
    columns: Annotated[tuple[FeatureName, ...], Field(min_length=2, max_length=16)]
    """Names of sparse features, whose ids after their steps are combined, or of columns, which are read with this
    feature's `encoding`. A missing value counts as a separate value."""

    @field_validator("columns")
    @classmethod
    def _different(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        doubled = repeated(columns)
        if doubled:
            raise ValueError(f"each column once; {doubled} stand in it several times")
        return columns


class Vocabulary(Step):
    """An id becomes the position of its value in a list, counted from 0."""

    step: Literal["vocabulary"]
    """Which step it is."""
    values: Annotated[tuple[StrictInt | StrictStr, ...], Field(max_length=MOST_VALUES)] = ()
    """The values, as in the column."""
    file: Location | None = None
    """Instead of `values`: a UTF-8 text file with one value per line, read once before training; the values are stored
    in the job."""
    out_of_vocabulary: Annotated[int, Field(ge=0, le=LARGEST_ID)] | None = None
    """The id of all other values; absent: the number of values."""

    @model_validator(mode="after")
    def _consistent(self) -> Vocabulary:
        if bool(self.values) == (self.file is not None):
            raise ValueError("set either values or file")
        doubled = [value for value, count in Counter(self.values).items() if count > 1]
        if doubled:
            raise ValueError(f"the values {doubled[:3]} occur more than once")
        return self


class KeepFirst(Step):
    """A list keeps its first `count` values."""

    step: Literal["keep_first"]
    """Which step it is."""
    count: Annotated[int, Field(ge=1, le=1_000_000)]
    """How many."""


class KeepLast(Step):
    """A list keeps its last `count` values."""

    step: Literal["keep_last"]
    """Which step it is."""
    count: Annotated[int, Field(ge=1, le=1_000_000)]
    """The number of values; `max_length` of a sparse feature is the short form."""


FeatureStep = Annotated[
    FillNull
    | MissingIndicator
    | Clip
    | Log1p
    | Standardize
    | Bucketize
    | Hash
    | Cross
    | Vocabulary
    | KeepFirst
    | KeepLast,
    Field(discriminator="step"),
]
"""One step; its kind is in the field `step`."""
Steps = tuple[FeatureStep, ...]


def is_unfitted(step: Step) -> bool:
    """Whether the step's figures must still be fitted, or its values still be read."""
    return (isinstance(step, Standardize) and step.mean is None) or (isinstance(step, Vocabulary) and bool(step.file))


def fitted_as(wanted: Steps, kept: Steps) -> Steps | None:
    """The wanted steps with the figures of the kept steps; None if the steps differ.

    Steps do not count as different if only the number of values that a list keeps has changed, or if values were
    appended to a vocabulary with `out_of_vocabulary`, because known values then keep their ids.
    """
    others = iter([step for step in kept if not isinstance(step, _CUTS)])
    fitted: list[FeatureStep] = []
    for step in wanted:
        if isinstance(step, _CUTS):
            fitted.append(step)
            continue
        other = next(others, None)
        if other is None or not _is_as(step, other):
            return None
        fitted.append(other if is_unfitted(step) else step)
    return tuple(fitted) if next(others, None) is None else None


def _is_as(wanted: FeatureStep, kept: FeatureStep) -> bool:
    if is_unfitted(wanted):
        return isinstance(kept, type(wanted))
    if isinstance(wanted, Vocabulary) and isinstance(kept, Vocabulary) and wanted.out_of_vocabulary is not None:
        return wanted.model_copy(update={"values": wanted.values[: len(kept.values)]}) == kept
    return wanted == kept


_TAKES_NUMBERS = (Clip, Log1p, Standardize, Bucketize)
_TAKES_IDS = (Hash, Vocabulary)
_CUTS = (KeepFirst, KeepLast)


class Fault(NamedTuple):
    """A step at a position where it is not allowed.

    Attributes:
        position: of the step; None: the list as a whole is wrong.
    """

    position: int | None
    value: str
    allowed: str
    remedy: str


def kind_read(steps: Sequence[FeatureStep], *, is_dense: bool) -> Kind:
    """The kind as which the column must be read, by the first step that uses its values."""
    for step in steps:
        if isinstance(step, _TAKES_NUMBERS):
            return Kind.NUMBER
        if isinstance(step, (*_TAKES_IDS, Cross)):
            return Kind.ID
    return Kind.NUMBER if is_dense else Kind.ID


def reads_presence_only(steps: Sequence[FeatureStep]) -> bool:
    """Whether the steps use only which values are missing, never the values."""
    first = next((step for step in steps if not isinstance(step, _CUTS)), None)
    return isinstance(first, MissingIndicator)


def faults(steps: Sequence[FeatureStep], *, is_dense: bool, is_list: bool, is_text: bool) -> list[Fault]:
    """Checks the order of a feature's steps; returns at most one fault, the first.

    Args:
        is_text: whether the column's values are encoded as text.
    """
    kind = kind_read(steps, is_dense=is_dense)
    is_raw, is_filled, indicated = True, False, False
    for index, step in enumerate(steps):
        name = step.step
        if isinstance(step, _CUTS) and not is_list:
            return [Fault(index, name, "steps for single values: this feature is no list", "set is_list: true")]
        if isinstance(step, Cross) and (index or is_dense or is_list):
            where = "the first step of a sparse feature that is no list"
            return [Fault(index, name, where, "give the crossed columns a sparse feature of their own")]
        if isinstance(step, FillNull | MissingIndicator) and is_filled:
            return [Fault(index, name, "a step before that one which leaves nothing missing", "move or remove it")]
        if isinstance(step, _TAKES_NUMBERS) and kind is not Kind.NUMBER:
            return [Fault(index, name, f"steps that take {kind}, for the steps before give them", "move or remove it")]
        if isinstance(step, (*_TAKES_IDS, Cross)) and kind is not Kind.ID:
            remedy = "put a bucketize before it" if not is_dense else "name the feature under sparse"
            return [Fault(index, name, f"steps that take {kind}, for the steps before give them", remedy)]
        if isinstance(step, Standardize) and is_unfitted(step) and any(map(is_unfitted, steps[:index])):
            return [Fault(index, name, "one fitted standardize for each feature", "give one of them mean and scale")]
        if isinstance(step, FillNull) and (fault := _filling(step, index, kind, is_text=is_text and is_raw)):
            return [fault]
        if isinstance(step, Vocabulary) and (fault := _vocabulary(step, index, is_text=is_text and is_raw)):
            return [fault]
        is_filled = is_filled or isinstance(step, FillNull | MissingIndicator | Cross)
        indicated = indicated or isinstance(step, MissingIndicator)
        if isinstance(step, MissingIndicator):
            kind = Kind.NUMBER if is_dense else Kind.ID
        if isinstance(step, Bucketize):
            kind = Kind.ID
        is_raw = is_raw and isinstance(step, (*_CUTS, FillNull))
    if is_dense and kind is Kind.ID:
        return [Fault(None, "a last step that gives ids", "one that gives numbers", "name the feature under sparse")]
    if not is_dense and kind is Kind.NUMBER:
        remedy = "add a bucketize, or name the feature under dense"
        return [Fault(None, "a last step that gives numbers", "one that gives ids", remedy)]
    return []


def _filling(step: FillNull, index: int, kind: Kind, *, is_text: bool) -> Fault | None:
    value = repr(step.value)
    if kind is Kind.NUMBER:
        allowed, fits = "a number", not isinstance(step.value, str)
    elif is_text:
        allowed, fits = "text, as the column holds it", isinstance(step.value, str)
    else:
        allowed, fits = f"a whole number up to {LARGEST_ID}", isinstance(step.value, int) and _is_id(step.value)
    remedy = "put it in quotes" if is_text and not fits else "correct the value"
    return None if fits else Fault(index, f"value {value}", allowed, remedy)


def _vocabulary(step: Vocabulary, index: int, *, is_text: bool) -> Fault | None:
    wrong = next((value for value in step.values if isinstance(value, str) != is_text or not _is_id(value)), None)
    if wrong is None:
        return None
    if is_text:
        return Fault(index, f"the value {wrong!r}", "text, as the column holds it", "put it in quotes")
    return Fault(index, f"the value {wrong!r}", f"whole numbers up to {LARGEST_ID}", "correct the value or `encoding`")


def _is_id(value: int | str) -> bool:
    return isinstance(value, str) or -LARGEST_ID - 1 <= value <= LARGEST_ID


def _default(kind: type[Step], name: str) -> Any:
    return kind.model_fields[name].default


def _shown(value: Any) -> str:
    if isinstance(value, tuple) and len(value) > _SHOWN_VALUES:
        return f"({len(value):,} values)"
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))})"
    return f"{value:g}" if isinstance(value, float) else str(value)
