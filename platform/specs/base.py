"""The base of every spec: unknown fields are refused, values are immutable."""

from __future__ import annotations

from typing import Any, get_args

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
        ValueError: it is true or false, and the field is a number.
    """
    # YAML reads `yes` and `on` as true, and pydantic reads true as 1.
    if isinstance(value, bool):
        annotation = spec.model_fields[str(info.field_name)].annotation
        kinds = {annotation, *get_args(annotation)}
        if kinds & {int, float} and bool not in kinds:
            raise ValueError("a number, not yes or no (true or false)")
    return value
