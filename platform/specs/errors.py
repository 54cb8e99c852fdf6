"""The one error hierarchy of elastrec. Messages name the field, the value, what is allowed and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from elastrec.platform.specs.text.uris import masked


class ElastrecError(Exception):
    """Base of every error that elastrec raises on purpose.

    Passwords in the message are masked: it may name the URIs of the data, the store and MLflow, and the messages of
    libraries do so, too.

    Attributes:
        retryable: whether the same request may succeed later.
        field: the wrong field of the input; empty if the error concerns no single field.
        remedy: what to do; empty if the message contains it or no remedy is known.
    """

    retryable: bool = False
    field: str = ""
    remedy: str = ""

    def __init__(self, message: str = "") -> None:
        super().__init__(masked(message))


MISSING = "absent"
COMBINATION = "this combination"
"""The value of a `FieldProblem` whose field is missing."""


@dataclass(frozen=True)
class FieldProblem:
    """A problem of one field of a spec or of another input.

    Attributes:
        path: of the field; empty: the whole of an input that has no name.
        value: as in the input; MISSING; or COMBINATION, if fields contradict each other: then `allowed` says how.
    """

    path: str
    value: str
    allowed: str
    remedy: str = ""

    def __str__(self) -> str:
        text = f"{self.path}: {self.value} is not allowed; allowed: {self.allowed}"
        if self.value == MISSING:
            text = f"{self.path} is missing; needed: {self.allowed}"
        elif self.value == COMBINATION:
            text = f"{self.path}: {self.allowed}"
        text = text.removeprefix(": ")
        return f"{text}; {self.remedy}" if self.remedy else text


def near(name: str, names: Iterable[str]) -> str:
    """A question that suggests the name that was probably meant; empty if no known name is similar."""
    matches = difflib.get_close_matches(name, list(names), n=1)
    return f"did you mean {matches[0]!r}?" if matches else ""


class SpecError(ElastrecError):
    """A job file, data description or override is wrong; the error contains all problems, not only the first.

    Args:
        problems: at least one problem.
        source: where the text came from, for example a file name.
    """

    def __init__(self, problems: list[FieldProblem], source: str = "") -> None:
        self.problems = problems
        self.source = source
        if problems:
            self.field, self.remedy = problems[0].path, problems[0].remedy
        where = f" in {source}" if source else ""
        lines = "\n".join(f"  - {problem}" for problem in problems)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__(f"{count}{where}:\n{lines}")


class ClusterError(ElastrecError):
    """A cluster refused (not `retryable`), or could not be reached."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class JobNotFoundError(ClusterError):
    """The cluster does not know the job: the job was stopped, has ended or was never launched."""


class OtherJobError(ClusterError):
    """Another job runs under the requested id. It is not changed."""


class TransportError(ElastrecError):
    """A call over the network failed."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class AuthenticationError(TransportError):
    """The token was missing or wrong. Never retried."""


class IncompatibleError(TransportError):
    """Two processes have incompatible code; a retry cannot help, even with another process of the same code."""

    remedy = "install the same version on every node and start the job again"


class DataError(ElastrecError):
    """A file or a row of the training data is unusable."""


class NoRowsError(DataError):
    """A chosen partition, or a file of it, is missing or holds no rows."""


class MissingColumnError(DataError):
    """Rows lack a column that the job names."""


class CheckpointError(ElastrecError):
    """A checkpoint could not be written, found or trusted."""


class HistoryError(ElastrecError):
    """The tracking server refused a record or could not be reached."""


class CollisionError(HistoryError):
    """The tracking server's database refused a write because of a concurrent write; a retry may succeed."""

    retryable = True


class HistoryAwayError(HistoryError):
    """The tracking server was not reachable again in time; the trained model is kept, and a later try continues from
    it."""

    retryable = True


class ScalingError(ElastrecError):
    """A scaling decision cannot be made from the given input; the job keeps its plan."""


class ChampionChangedError(ElastrecError):
    """Another model has become champion since a new model was compared with the champion."""

    retryable = True


class JobFailedError(ElastrecError):
    """A training job ended in failure; the message holds the reason and, where there is one, the user's traceback."""
