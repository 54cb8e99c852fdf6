"""Checks of model options; every refusal names the option, its value and what is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from elastrec.platform.specs.errors import FieldProblem, SpecError


def _refuse(name: str, value: Any, allowed: str) -> SpecError:
    return SpecError([FieldProblem(f"spec.model.options.{name}", repr(value), allowed)])


def layer_sizes(name: str, value: Any) -> list[int]:
    """Sizes of hidden layers: at least one positive whole number.

    Raises:
        SpecError: anything else.
    """
    allowed = "a list of at least one positive whole number, for example [256, 128]"
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise _refuse(name, value, allowed)
    if not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in value):
        raise _refuse(name, value, allowed)
    return list(value)


def whole_number(name: str, value: Any, *, at_least: int = 1) -> int:
    """A whole number that is not below `at_least`.

    Raises:
        SpecError: anything else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise _refuse(name, value, f"a whole number of at least {at_least}")
    return value


def one_of(name: str, value: Any, allowed: Sequence[str]) -> str:
    """One of a few words.

    Raises:
        SpecError: another value.
    """
    if value not in allowed:
        raise _refuse(name, value, ", ".join(allowed))
    return str(value)
