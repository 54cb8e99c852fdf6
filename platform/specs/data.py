"""TrainingData: the location of the rows, how they are read, and which columns are labels, dense and sparse
features."""

from __future__ import annotations

import codecs
from enum import StrEnum
from typing import Annotated, Literal, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from pydantic import Field, field_validator, model_validator

from elastrec.platform.specs.base import Spec
from elastrec.platform.specs.errors import near
from elastrec.platform.specs.features import Cross, FillNull, KeepFirst, KeepLast, Log1p, Standardize, Steps, faults
from elastrec.platform.specs.partition_folders import (
    DAY_PATTERN,
    HOUR_PATTERN,
    PartitionFolders,
    partition_folders,
)
from elastrec.platform.specs.text.patterns import ImportPath, Location
from elastrec.platform.specs.text.problems import FieldError
from elastrec.platform.specs.text.some import repeated

ColumnName = Annotated[str, Field(min_length=1, max_length=200)]


WIDE_ENCODINGS = ("utf-16", "utf-16-le", "utf-16-be")
"""Two bytes for each character of a line's end."""
LABEL_COLUMN, DENSE_COLUMN, GROUP_PREFIX = "label", "dense", "deduplicated:"
"""Columns of the batches that workers train on, beside one for each sparse feature: labels, dense features, and groups
of deduplicated features, which are numbered."""
_LARGEST_FLOAT32 = 3.4028235e38


class FileFormat(StrEnum):
    """How the files of a partition are encoded. `criteo_tsv`: label, I1..I13, C1..C26, separated by tabs. `libsvm`: a
    label and INDEX:VALUE pairs; its columns are the label, `qid`, `indices` and `values` (lists), and each index, as in
    `column: "7"`, empty where a row does not have it."""

    CRITEO_TSV = "criteo_tsv"
    CSV = "csv"
    LIBSVM = "libsvm"
    PARQUET = "parquet"


class Partitioning(StrEnum):
    """One folder per day, per hour, or none; `partition_folder` sets the names of the folders."""

    DAY = "day"
    HOUR = "hour"
    NONE = "none"


class LabelColumn(Spec):
    """A value to be predicted for each row."""

    name: ColumnName
    """The column; also the name of the model's output for it, unless the model names its outputs itself."""
    kind: Literal["binary", "value"] = "binary"
    """`binary`: 0 or 1, predicted as a probability; `value`: any finite number, predicted as a number."""


class Target(NamedTuple):
    """A column with a label or, for the kind `weight`, with the weight of a row."""

    name: str
    kind: Literal["binary", "value", "weight"]


class DenseFeature(Spec):
    """One number per row."""

    name: ColumnName
    """The feature's name, and the column's unless `column` says another."""
    transform: Literal["none", "log1p", "standardize"] | None = None
    """Short form of one step, for a feature without steps under `features`: `log1p` is sign(x) * log(1 + |x|),
    `standardize` is (x - mean) / scale with the two fields below. Absent: `log1p`."""
    mean: float = 0.0
    """Subtracted by `standardize`."""
    scale: Annotated[float, Field(gt=0)] = 1.0
    """Divided by in `standardize`."""
    missing: float = 0.0
    """The value for empty fields, before the transform; short form of the step `fill_null`."""
    column: ColumnName | None = None
    """The column; the feature's own name when absent. Several features may read one column."""

    @model_validator(mode="after")
    def _has_effect(self) -> DenseFeature:
        if self.transform != "standardize" and (self.mean != 0.0 or self.scale != 1.0):
            raise ValueError(
                f"mean {self.mean:g} and scale {self.scale:g} have a meaning only with transform: standardize; set "
                "that, or remove them"
            )
        return self

    @model_validator(mode="after")
    def _missing_fits(self) -> DenseFeature:
        value = (self.missing - self.mean) / self.scale if self.transform == "standardize" else self.missing
        if self.transform in ("none", "standardize") and abs(value) > _LARGEST_FLOAT32:
            raise ValueError(
                f"`missing` becomes {value:g} by the transform; float32 holds at most {_LARGEST_FLOAT32:g}"
            )
        return self

    @property
    def column_name(self) -> str:
        return self.column or self.name

    @property
    def short_steps(self) -> Steps:
        """The steps for which the short forms stand."""
        fill = FillNull(step="fill_null", value=self.missing)
        if self.transform == "none":
            return (fill,)
        if self.transform == "standardize":
            return fill, Standardize(step="standardize", mean=self.mean, scale=self.scale)
        return fill, Log1p(step="log1p")


class SparseFeature(Spec):
    """Zero or more 64-bit ids per row."""

    name: ColumnName
    """The feature's name, and the column's unless `column` says another."""
    encoding: Literal["integer", "hexadecimal", "string"] = "integer"
    """How the column's values become 64-bit ids; strings are hashed with xxh3-64. Empty text is a missing value."""
    raw_encoding: Literal["hexadecimal", "string"] | None = None
    """How text in a column of integers becomes ids. `elastrec data convert` sets it, because its files hold ids, while
    rows to be scored may hold the text of the original log."""
    is_list: bool = False
    """The column holds a list per row (Parquet list; in text files separated by `list_separator`)."""
    max_length: Annotated[int, Field(ge=1, le=1_000_000)] = 100
    """Longer lists keep their last `max_length` ids, unless a step under `features` sets what they keep."""
    pooling: Literal["sum", "mean", "attention"] = "sum"
    """How the rows of a list become one vector. `attention` is a weighted mean; a small network computes the weights
    from the rows. It works in every model that does not pool the list itself; repeated lists are computed once."""
    table: ColumnName | None = None
    """Embedding table; the feature's own name when absent. Features that name the same table share its rows."""
    column: ColumnName | None = None
    """The column; the feature's own name when absent. Several features may read one column."""

    @model_validator(mode="after")
    def _raw_encoding_fits(self) -> SparseFeature:
        if self.raw_encoding is not None and self.encoding != "integer":
            raise ValueError(f"raw_encoding has a meaning only with encoding: integer, not {self.encoding}; remove it")
        return self

    @model_validator(mode="after")
    def _attends_to_a_list(self) -> SparseFeature:
        if self.pooling == "attention" and not self.is_list:
            raise ValueError("pooling: attention has a meaning only with is_list: true; remove it, or set that")
        return self

    @property
    def table_name(self) -> str:
        return self.table or self.name

    @property
    def column_name(self) -> str:
        return self.column or self.name

    @property
    def is_text(self) -> bool:
        """Whether ids are made from text, in the log or in rows to be scored."""
        return (self.raw_encoding or self.encoding) != "integer"


def _short_forms(feature: DenseFeature | SparseFeature, steps: Steps) -> str:
    """The first field of a feature with steps that is a short form of a step; empty if there is none."""
    if isinstance(feature, DenseFeature):
        values = {"transform": None, "mean": 0.0, "scale": 1.0, "missing": 0.0}
    else:
        cuts = any(isinstance(step, KeepFirst | KeepLast) for step in steps)
        values = {"max_length": SparseFeature.model_fields["max_length"].default} if cuts else {}
    return next((name for name, default in values.items() if getattr(feature, name) != default), "")


class CsvOptions(Spec):
    """How text files are split into columns."""

    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = ","
    """The character between two columns: one of ASCII."""
    has_header: bool = True
    """Whether the first line names the columns."""
    column_names: tuple[ColumnName, ...] | None = None
    """Names of the columns; needed if the files have no header."""
    list_separator: Annotated[str, Field(min_length=1, max_length=1)] = "|"
    """The character between two ids of a list column."""
    encoding: str = "utf-8"
    """Character encoding: the Python name of an encoding that contains ASCII (`latin-1`, `cp1252`, ...), or `utf-16`,
    `utf-16-le`, `utf-16-be`."""
    null_tokens: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=100)], ...], Field(max_length=100)] = ()
    """Values that count as empty fields, such as `NA`, `\\N` or `null`; for all text formats, and for requests to a
    model that was trained on them."""
    decimal_point: Literal[".", ","] = "."
    """The decimal point of numbers."""
    newlines_in_values: bool = False
    """Whether quoted fields may contain line breaks. Fields with quotation marks must then be quoted, and a quotation
    mark inside a quoted field is written twice."""

    @field_validator("delimiter")
    @classmethod
    def _separates(cls, delimiter: str) -> str:
        if not delimiter.isascii() or delimiter in '"\r\n\0':
            raise ValueError("one character of ASCII that is no quotation mark, line break or zero, such as ; or \\t")
        return delimiter

    @field_validator("column_names")
    @classmethod
    def _differ(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if doubled := repeated(names or ()):
            raise ValueError(f"names that differ; {', '.join(map(repr, doubled))} is there several times")
        return names

    @field_validator("encoding")
    @classmethod
    def _is_readable(cls, encoding: str) -> str:
        ascii_text = "".join(map(chr, range(128)))
        try:
            name = codecs.lookup(encoding).name
            if name in WIDE_ENCODINGS or ascii_text.encode(name) == ascii_text.encode():
                return name
        except (LookupError, ValueError):
            pass
        raise ValueError("an encoding of Python's in which ASCII stands for itself, such as latin-1, or utf-16")

    @model_validator(mode="after")
    def _distinguishes_fields_from_fractions(self) -> CsvOptions:
        if self.delimiter == self.decimal_point:
            raise ValueError(f"delimiter and decimal_point are both {self.delimiter!r}; numbers need another character")
        return self


class BadRows(Spec):
    """What happens to a row that cannot be used (label outside {0, 1}, negative weight, text in a column of numbers,
    NaN)."""

    policy: Literal["fail", "skip"] = "fail"
    """`fail`: the first bad row ends the job; `skip`: bad rows are skipped, and counted in the log of their worker."""
    at_most: Annotated[int, Field(ge=0)] = 0
    """With `skip`: the job fails when its workers together have skipped more different rows, of training and
    evaluation; `data land` counts over all calls."""

    @model_validator(mode="after")
    def _consistent(self) -> BadRows:
        if self.policy == "fail" and self.at_most:
            raise ValueError(f"at_most {self.at_most} has a meaning only with policy: skip; remove it or set that")
        return self


class TrainingData(Spec):
    """One click log: location, format and columns."""

    path: Annotated[Location, Field(examples=["data/clicks", "s3://bucket/clicks"])]
    """Root folder of the partitions: a local path or a URI that pyarrow's file systems know."""
    evaluation_path: Location | None = None
    """Rows to evaluate on, required without partitions and not allowed with them: with partitions, the next partition
    is evaluated on."""
    format: FileFormat = FileFormat.PARQUET
    partitioning: Partitioning = Partitioning.DAY
    partition_folder: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    """The folder of a partition below `path`: `%Y`, `%m`, `%d` and `%H` stand for year, month, day and hour (`%-m`,
    `%-d`, `%-H`: without a leading zero), `key=*` for a key with any value, as in `country=*/dt=%Y-%m-%d/hour=%-H`.
    Absent: `day=%Y-%m-%d`, for hours `day=%Y-%m-%d/hour=%H`. Other keys, also of folders below, become text columns
    unless the files have such a column."""
    include: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=200)], ...], Field(max_length=100)] = ()
    """Patterns of the names of files that are read, such as `*.parquet`; empty: all files whose names do not begin with
    `.` or `_`. A file of another format then fails the job."""
    timezone: str = "UTC"
    """IANA name of the time zone of the partitions' days and hours, such as `America/Los_Angeles`."""
    label: ColumnName = "label"
    """The column with the label, 0 or 1."""
    labels: tuple[LabelColumn, ...] = ()
    """Instead of `label`: several labels, or a label with other values than 0 and 1."""
    weight: ColumnName | None = None
    """A column of non-negative numbers: the weights of rows in the loss of a minibatch. A row of weight 2 has the same
    effect as two equal rows; metrics count every row once. Absent: every row has weight 1."""
    dense: tuple[DenseFeature, ...] = ()
    sparse: tuple[SparseFeature, ...]
    timestamp: ColumnName | None = None
    """The column with the time of a row; used by tools that split by time. Numbers since the epoch, or times, dates or
    ISO 8601 text; those without an offset are in `timezone`."""
    timestamp_unit: Literal["seconds", "milliseconds", "microseconds", "nanoseconds"] = "seconds"
    """The unit of a timestamp that is a number."""
    session: ColumnName | None = None
    """Rows with an equal value belong together; used by tools that split or cluster by session."""
    csv: CsvOptions = CsvOptions()
    bad_rows: BadRows = BadRows()
    transform: ImportPath | None = None
    """A function `pyarrow.RecordBatch -> pyarrow.RecordBatch` applied to raw rows; same number of rows."""
    features: dict[ColumnName, Steps] = Field(default_factory=dict)
    """By name of a dense or sparse feature: the steps from the column's values to the input of the model, in order.
    Training, evaluation and the exported model use the same steps. A value that is missing after the steps becomes 0 in
    a dense feature, and a separate id in a sparse feature; `hash_size` of a table is applied last."""

    @field_validator("sparse")
    @classmethod
    def _not_empty(cls, sparse: tuple[SparseFeature, ...]) -> tuple[SparseFeature, ...]:
        # Not a length constraint of the type: pydantic would repeat it beside every wrong item.
        if not sparse:
            raise ValueError("at least one sparse feature")
        return sparse

    @field_validator("timezone")
    @classmethod
    def _is_timezone(cls, timezone: str) -> str:
        try:
            ZoneInfo(timezone)
        except (KeyError, OSError, ValueError):
            hint = near(timezone, available_timezones())
            allowed = "an IANA time zone such as 'UTC' or 'Europe/Berlin'"
            raise ValueError(f"{allowed}; {hint}" if hint else allowed) from None
        return timezone

    @model_validator(mode="after")
    def _has_folders(self) -> TrainingData:
        if self.partitioning is not Partitioning.NONE:
            try:
                _ = self.folders
            except ValueError as error:
                raise ValueError(
                    f"partition_folder {self.partition_folder!r} is not allowed; allowed: {error}"
                ) from error
        elif self.partition_folder is not None:
            raise ValueError("partition_folder has a meaning only with partitioning: day or hour; remove it")
        return self

    @model_validator(mode="after")
    def _consistent(self) -> TrainingData:
        if self.labels and self.label != "label":
            raise ValueError(f"label and labels are both set; name the column {self.label!r} among labels")
        names = [*(feature.name for feature in self.dense), *(feature.name for feature in self.sparse)]
        names += [target.name for target in self.targets]
        doubled = repeated(names)
        if doubled:
            raise ValueError(f"the columns {doubled} are used more than once among labels, weight, dense and sparse")
        self._check_names()
        self._check_columns()
        self._check_steps()
        poolings: dict[str, set[str]] = {}
        for feature in self.sparse:
            # One id is its sum and its mean.
            if feature.is_list and feature.pooling != "attention":
                poolings.setdefault(feature.table_name, set()).add(feature.pooling)
        mixed = sorted(table for table, kinds in poolings.items() if len(kinds) > 1)
        if mixed:
            raise ValueError(f"the lists of the tables {mixed} ask for different pooling; give each pooling a table")
        if self.evaluation_path and self.partitioning is not Partitioning.NONE:
            raise ValueError(
                "evaluation_path has a meaning only with partitioning: none; the next partition is evaluated on"
            )
        if self.format is FileFormat.CSV and not self.csv.has_header and not self.csv.column_names:
            raise ValueError("csv.column_names is needed when csv.has_header is false")
        lists = any(feature.is_list for feature in self.sparse)
        if self.format is FileFormat.CSV and lists and self.csv.delimiter == self.csv.list_separator:
            raise ValueError(
                f"csv.delimiter and csv.list_separator are both {self.csv.delimiter!r}; lists need another character"
            )
        return self

    def _check_names(self) -> None:
        for position, feature in enumerate(self.sparse):
            if feature.name in (LABEL_COLUMN, DENSE_COLUMN) or feature.name.startswith(GROUP_PREFIX):
                raise FieldError(
                    f"sparse.{position}.name",
                    repr(feature.name),
                    f"a name other than {LABEL_COLUMN!r} and {DENSE_COLUMN!r} that does not begin with "
                    f"{GROUP_PREFIX!r}, because columns of minibatches have these names",
                    "give the feature another name, and the column's name in its field `column`",
                )

    def _check_columns(self) -> None:
        targets = {target.name for target in self.targets}
        for position, feature in enumerate(self.described_features):
            if feature.column_name in targets:
                dense = len(self.dense)
                place = f"dense.{position}" if position < dense else f"sparse.{position - dense}"
                raise FieldError(
                    f"{place}.column", repr(feature.column_name), "a column that is no label or weight",
                    "the model would see what it is to predict: name another column",
                )  # fmt: skip

    def _check_steps(self) -> None:
        features = {feature.name: feature for feature in self.described_features}
        targets = {target.name for target in self.targets}
        for name, steps in self.features.items():
            feature = features.get(name)
            if feature is None:
                meant = near(name, features) or "name it under dense or sparse, too"
                raise FieldError(f"features.{name}", f"{name!r}, no feature", f"one of {', '.join(features)}", meant)
            if not steps:
                raise FieldError(f"features.{name}", "no step", "one step or more", "remove the feature from features")
            is_dense = isinstance(feature, DenseFeature)
            short = _short_forms(feature, steps)
            if short:
                raise FieldError(
                    f"features.{name}", f"steps beside `{short}` of the feature", "one of the two",
                    f"write `{short}` as a step, or remove it",
                )  # fmt: skip
            found = faults(
                steps,
                is_dense=is_dense,
                is_list=isinstance(feature, SparseFeature) and feature.is_list,
                is_text=isinstance(feature, SparseFeature) and feature.is_text,
            )
            if found:
                fault = found[0]
                place = "" if fault.position is None else f".{fault.position}"
                raise FieldError(f"features.{name}{place}", fault.value, fault.allowed, fault.remedy)
            if isinstance(steps[0], Cross):
                self._check_cross(name, steps[0], targets)

    def _check_cross(self, name: str, cross: Cross, targets: set[str]) -> None:
        lists = {feature.name for feature in self.sparse if feature.is_list}
        dense = {feature.name for feature in self.dense}
        crosses = {key for key, steps in self.features.items() if steps and isinstance(steps[0], Cross)}
        place = f"features.{name}.0.columns"
        for column in cross.columns:
            if column in targets:
                raise FieldError(place, repr(column), "columns that are no label or weight", "name another column")
            if column in lists:
                raise FieldError(place, f"{column!r}, a list", "features with one value per row", "name another one")
            if column in dense:
                remedy = "name a sparse feature that has a step bucketize and reads the same column"
                raise FieldError(place, f"{column!r}, a dense feature", "sparse features or columns", remedy)
            if column in crosses:
                remedy = "name the columns that it crosses"
                raise FieldError(place, f"{column!r}, a cross itself", "features that are no cross, or columns", remedy)

    @property
    def described_features(self) -> tuple[DenseFeature | SparseFeature, ...]:
        """The dense features, then the sparse ones."""
        return (*self.dense, *self.sparse)

    def steps(self, name: str) -> Steps:
        """The steps of one feature as the job file lists them; none where it lists none."""
        return self.features.get(name, ())

    def all_steps(self, feature: DenseFeature | SparseFeature) -> Steps:
        """The steps of one feature, with those that short forms and defaults stand for."""
        listed = self.steps(feature.name)
        if isinstance(feature, DenseFeature):
            return listed or feature.short_steps
        if not feature.is_list or any(isinstance(step, KeepFirst | KeepLast) for step in listed):
            return listed
        return KeepLast(step="keep_last", count=feature.max_length), *listed

    @property
    def attention_features(self) -> tuple[str, ...]:
        """Lists that are pooled by attention."""
        return tuple(feature.name for feature in self.sparse if feature.pooling == "attention")

    def list_length(self, feature: SparseFeature) -> int:
        """The maximum number of ids in a list of the feature."""
        counts = [step.count for step in self.steps(feature.name) if isinstance(step, KeepFirst | KeepLast)]
        return min(counts, default=feature.max_length)

    @property
    def folders(self) -> PartitionFolders:
        """The names of the partitions' folders; only with partitions."""
        has_hours = self.partitioning is Partitioning.HOUR
        return partition_folders(
            self.partition_folder or (HOUR_PATTERN if has_hours else DAY_PATTERN), has_hours=has_hours
        )

    @property
    def tables(self) -> tuple[str, ...]:
        """Table names in order of first use."""
        return tuple(dict.fromkeys(feature.table_name for feature in self.sparse))

    @property
    def label_columns(self) -> tuple[LabelColumn, ...]:
        """All labels in the order of the job file, at least one."""
        return self.labels or (LabelColumn(name=self.label),)

    @property
    def targets(self) -> tuple[Target, ...]:
        """The labels, then the weight if there is one: what a trainer-ready row has in this order."""
        labels = tuple(Target(label.name, label.kind) for label in self.label_columns)
        return labels if self.weight is None else (*labels, Target(self.weight, "weight"))
