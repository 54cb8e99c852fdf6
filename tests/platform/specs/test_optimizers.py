"""Fields of update rules: each of them has an effect, or is refused."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from elastrec.platform.specs.optimizers import OptimizerKind, OptimizerSpec
from tests.trainers.reference_rules import ReferenceRule

OTHER_VALUES = {
    "learning_rate": 0.5, "epsilon": 0.1, "initial_accumulator": 0.5, "beta1": 0.5, "beta2": 0.5, "beta": 2.0,
    "l1": 0.1, "l2": 0.2, "weight_decay": 0.3,
}  # fmt: skip


def after_two_steps(spec: OptimizerSpec) -> np.ndarray:
    """values [1, 4] after two steps of the rule, by the papers' formulas."""
    rule = ReferenceRule(spec, np.array([[0.5, -0.25, 1.0, 0.125]]))
    for gradient in ([[0.3, -0.2, 0.1, 0.4]], [[-0.5, 0.25, 0.2, 0.1]]):
        rule.step(np.array([0]), np.array(gradient))
    return rule.values


@pytest.mark.parametrize("kind", OptimizerKind)
@pytest.mark.parametrize(("name", "value"), OTHER_VALUES.items(), ids=list(OTHER_VALUES))
def test_a_field_of_a_rule_has_an_effect_or_is_refused(kind: OptimizerKind, name: str, value: float) -> None:
    default = OptimizerSpec(kind=kind)
    changed = default.model_copy(update={name: value})  # not validated
    if np.array_equal(after_two_steps(changed), after_two_steps(default)):
        with pytest.raises(ValidationError, match=f"{name} {value:g} has no effect with kind: {kind}, only with"):
            OptimizerSpec.model_validate({"kind": kind, name: value})
    else:
        assert OptimizerSpec.model_validate({"kind": kind, name: value}) == changed


def test_a_rule_with_all_fields_of_its_text_is_accepted() -> None:
    for kind in OptimizerKind:
        spec = OptimizerSpec(kind=kind)
        assert OptimizerSpec.model_validate_json(spec.model_dump_json()) == spec
