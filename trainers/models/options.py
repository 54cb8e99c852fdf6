"""Checks of model options; every refusal names the option, its value and what is allowed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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


def list_features(name: str, value: Any, lists: Collection[str]) -> list[str]:
    """Names of list features, at least one, each once.

    Args:
        lists: the list features that there are.

    Raises:
        SpecError: anything else.
    """
    allowed = f"at least one list feature, each once: {', '.join(lists) or 'the job has none'}"
    if not isinstance(value, Sequence | Mapping) or isinstance(value, str) or not value:
        raise _refuse(name, value, allowed)
    if len(set(value)) != len(value) or any(each not in lists for each in value):
        raise _refuse(name, value, allowed)
    return list(value)


def targets(name: str, value: Any, lists: Collection[str], features: Collection[str]) -> dict[str, str]:
    """For each of some list features the feature that it is weighed by.

    Args:
        lists: the list features that there are.
        features: all features; one that is weighed itself cannot be what another is weighed by.

    Raises:
        SpecError: anything else.
    """
    if not isinstance(value, Mapping):
        raise _refuse(name, value, "a mapping from list features to the features that they are weighed by")
    weighed = list_features(name, value, lists)
    others = [feature for feature in features if feature not in weighed]
    for each in weighed:
        if value[each] not in others:
            raise _refuse(f"{name}.{each}", value[each], f"{', '.join(others) or 'no feature is left'}")
    return {each: str(value[each]) for each in weighed}


def some_features(name: str, value: Any, features: Collection[str]) -> list[str]:
    """Names of some features, each once: at least one, but not all.

    Raises:
        SpecError: anything else.
    """
    allowed = f"at least one feature, each once, and not all of {', '.join(features)}"
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise _refuse(name, value, allowed)
    if len(set(value)) != len(value) or any(each not in features for each in value) or len(value) == len(features):
        raise _refuse(name, value, allowed)
    return list(value)
