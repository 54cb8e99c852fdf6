"""The base of every spec: unknown fields are refused, values are immutable."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Spec(BaseModel):
    """A frozen pydantic model that refuses unknown fields."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True, populate_by_name=True
    )
