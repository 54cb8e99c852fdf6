"""Values that no number of a spec may have."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from elastrec.platform.specs.base import Spec
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.scaling import ScalingSettings


def inner(annotation: Any) -> Iterator[Any]:
    """An annotation and everything inside it."""
    yield annotation
    for argument in get_args(annotation):
        yield from inner(argument)


def specs_in(kind: type[Spec], found: set[type[Spec]]) -> set[type[Spec]]:
    """A spec and all specs of its fields, at any depth."""
    if kind not in found:
        found.add(kind)
        parts = itertools.chain.from_iterable(inner(field.annotation) for field in kind.model_fields.values())
        for part in parts:
            if isinstance(part, type) and issubclass(part, Spec):
                specs_in(part, found)
    return found


ALL = sorted(specs_in(TrainingJob, set()) | specs_in(ScalingSettings, set()), key=lambda kind: kind.__name__)
NUMBERS = [
    (kind, name)
    for kind in ALL
    for name, field in kind.model_fields.items()
    if {int, float} & {part for part in inner(field.annotation) if isinstance(part, type)}
]


@pytest.mark.parametrize(("kind", "name"), NUMBERS, ids=[f"{kind.__name__}.{name}" for kind, name in NUMBERS])
@pytest.mark.parametrize("value", [True, [True, 2]], ids=["yes", "a list"])
def test_no_number_of_a_spec_is_yes_or_no(kind: type[Spec], name: str, value: Any) -> None:
    with pytest.raises(ValidationError) as error:
        kind.model_validate({name: value})
    assert name in {detail["loc"][0] for detail in error.value.errors()}


def test_the_numbers_of_all_sections_are_found() -> None:
    names = {f"{kind.__name__}.{name}" for kind, name in NUMBERS}
    assert {"TableSpec.hash_size", "Bucketize.boundaries", "Team.priority", "Standardize.scale"} <= names
