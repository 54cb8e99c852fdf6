"""Deduplication: which features a job's workers look up and pool once per distinct row (RecD §4–5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import model_serializer, model_validator

from elastrec.platform.specs.base import Spec
from elastrec.platform.specs.data import ColumnName
from elastrec.platform.specs.text.some import repeated


class Deduplication(Spec):
    """Instead of `auto` or `off`: the features, or the groups. In Python, `auto` has neither, and `off` an empty list
    of groups."""

    features: tuple[ColumnName, ...] | None = None
    """Features that are deduplicated; a sample of the rows determines which of them form a group."""
    groups: tuple[tuple[ColumnName, ...], ...] | None = None
    """Features of a group change together: a row counts as a repeat if all of them equal those of an earlier row."""

    @model_validator(mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        if isinstance(value, Mapping | cls):
            return value
        # YAML reads `off` as false.
        if value is False or value == "off":
            return {"groups": ()}
        if value == "auto":
            return {}
        raise ValueError("auto, off, or a mapping with features or groups")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.features is not None and self.groups is not None:
            raise ValueError("set features or groups, not both: groups name their features")
        if self.features == ():
            raise ValueError("features is empty: name at least one, or write off")
        if self.groups and not all(self.groups):
            raise ValueError("every group needs at least one feature")
        doubled = repeated(self.named)
        if doubled:
            raise ValueError(f"{doubled} are named more than once")
        return self

    @model_serializer
    def _plain(self) -> Any:
        if self.is_auto:
            return "auto"
        if self.is_off:
            return "off"
        if self.features is not None:
            return {"features": list(self.features)}
        return {"groups": [list(group) for group in self.groups or ()]}

    @property
    def is_auto(self) -> bool:
        """Whether features and groups are chosen by the repeats in a sample of the rows."""
        return self.features is None and self.groups is None

    @property
    def is_off(self) -> bool:
        """Whether nothing is deduplicated."""
        return self.groups == ()

    @property
    def named(self) -> tuple[str, ...]:
        """All features that are named, in order."""
        return self.features or tuple(name for group in self.groups or () for name in group)


OFF = Deduplication(groups=())


def words_or_section(schema: dict[str, Any]) -> None:
    """The JSON schema of a field of this type: `auto`, `off` or the section."""
    section = {"$ref": schema.pop("$ref")}
    schema["anyOf"] = [section, {"type": "string", "enum": ["auto", "off"]}]
