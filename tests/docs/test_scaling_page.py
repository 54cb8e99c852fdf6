"""The page on scaling: its settings and its policy are tried as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from elastrec.platform.scaling.policy import ScalingPolicy, View, decide
from elastrec.platform.specs.scaling import ScalingSettings
from elastrec.platform.specs.text.loading import parse_mapping, validate
from tests.platform.scaling.jobs import PLENTY, PRICES, profile

PAGE = (Path(__file__).resolve().parents[2] / "docs/scaling.md").read_text(encoding="utf-8")


def block(language: str, containing: str) -> str:
    (found,) = [text for text in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if containing in text]
    return str(found)


def test_the_settings_on_the_page_are_valid() -> None:
    settings = validate(ScalingSettings, parse_mapping(block("yaml", "policy: three-stage"), "the page"), "the page")
    assert settings.teams["ads"].share == 0.5 and settings.teams["ads"].minimum_workers == 2


def test_the_policy_on_the_page_decides() -> None:
    namespace: dict[str, Any] = {}
    exec(block("python", "class Careful"), namespace)
    policy = namespace["Careful"]()
    assert isinstance(policy, ScalingPolicy)
    found = decide(policy, [profile()], View(PLENTY, PRICES))
    (plan,) = found.plans
    assert not found.problems and plan.allocation.workers == profile().allocation.workers + 1
