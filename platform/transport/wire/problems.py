"""Errors as messages: a server's answer instead of a result, and the error that its client raises.

The code is the name of a class in `specs.errors`, so that callers decide by class and attributes, never by text.
"""

from __future__ import annotations

import msgspec

from elastrec.platform.specs import errors
from elastrec.platform.specs.errors import ElastrecError, FieldProblem, IncompatibleError, SpecError, TransportError
from elastrec.platform.transport.versions import code_version

INTERNAL = "InternalError"
"""Code of exceptions that are not of elastrec."""
_CLASSES = {
    name: value for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, ElastrecError)
}


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answer to a request that failed; the connection stays open.

    Attributes:
        code: name of the error's class, or of the nearest one above it in `specs.errors`.
        retryable: the same request may succeed later.
        field: the wrong field of the request, if there is a single one.
        problems: every wrong field of a SpecError.
    """

    code: str
    text: str
    retryable: bool = False
    field: str = ""
    remedy: str = ""
    problems: list[FieldProblem] = []


def problem_of(error: Exception) -> Problem:
    """The answer to a request that raised `error`."""
    if not isinstance(error, ElastrecError):
        return Problem(INTERNAL, f"{type(error).__name__}: {error}")
    code = next(kind.__name__ for kind in type(error).__mro__ if _CLASSES.get(kind.__name__) is kind)
    problems = error.problems if isinstance(error, SpecError) else []
    return Problem(code, str(error), error.retryable, error.field, error.remedy, problems)


def error_of(problem: Problem, address: str, version: str) -> ElastrecError:
    """The error that the caller raises: of the same class, or a TransportError if it does not know the code.

    Args:
        address, version: of the process that answered.
    """
    kind = _CLASSES.get(problem.code, ElastrecError)
    text = problem.text
    if kind is ElastrecError:
        kind, text = TransportError, f"{address}: {problem.code}: {text}"
    elif kind is IncompatibleError:
        text = (
            f"{address}, which runs elastrec {version}, refuses what this process, which runs elastrec "
            f"{code_version()}, sends: {text}; {IncompatibleError.remedy}"
        )
    elif issubclass(kind, TransportError):
        text = f"{address}: {text}"
    error = kind.__new__(kind, text)
    error.retryable, error.field, error.remedy = problem.retryable, problem.field, problem.remedy
    if isinstance(error, SpecError):
        error.problems, error.source = problem.problems, address
    return error
