"""The base of every spec: unknown fields are refused, values are immutable."""

from __future__ import annotations

import math
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Spec(BaseModel):
    """A frozen pydantic model that refuses unknown fields, infinities, and booleans in place of numbers."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        use_attribute_docstrings=True,
        populate_by_name=True,
        allow_inf_nan=False,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_boolean_as_number(cls, value: Any, info: ValidationInfo) -> Any:
        return number_not_boolean(cls, value, info)


def number_not_boolean(spec: type[BaseModel], value: Any, info: ValidationInfo) -> Any:
    """Returns the value unchanged.

    Raises:
        ValueError: it is true or false, or contains one of them, and the field is a number or a sequence of numbers.
    """
    # YAML reads `yes` and `on` as true, and pydantic reads true as 1.
    annotation = spec.model_fields[str(info.field_name)].annotation
    if isinstance(value, bool) and _are_numbers(_alternatives(annotation)):
        raise ValueError("a number, not yes or no (true or false)")
    if isinstance(value, list | tuple) and any(isinstance(item, bool) for item in value):
        items = {item for each in _alternatives(annotation) if get_origin(each) is tuple for item in get_args(each)}
        if _are_numbers(items):
            raise ValueError("numbers, not yes or no (true or false)")
    return value


def _are_numbers(kinds: set[Any]) -> bool:
    return bool(kinds & {int, float}) and bool not in kinds


def _alternatives(annotation: Any) -> set[Any]:
    """The types of a field, without their limits: `Annotated[int, ...] | None` is int or None."""
    if get_origin(annotation) is Annotated:
        return _alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return set().union(*map(_alternatives, get_args(annotation)))
    return {annotation}


def require_json(value: Any) -> None:
    """Raises ValueError unless JSON gives the same value back, tuples as lists: it has no dates and no NaN."""
    match value:
        case None | bool() | int() | str():
            return
        case float() if math.isfinite(value):
            return
        case list() | tuple():
            for item in value:
                require_json(item)
        case dict() if all(isinstance(key, str) for key in value):
            for item in value.values():
                require_json(item)
        case _:
            raise ValueError(
                f"text, finite numbers, true, false, lists, and mappings with names as keys; not {value!r} (text such "
                "as 2026-02-03 needs quotes)"
            )
