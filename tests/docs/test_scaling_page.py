"""The settings and the policy on the page about scaling work as shown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from elastrec.platform.scaling.policy import ScalingPolicy, View, decide, policy_names
from elastrec.platform.specs.scaling import ScalingSettings
from elastrec.platform.specs.text.loading import parse_mapping, validate
from tests.platform.scaling.jobs import PLENTY, PRICES, profile

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/scaling.md").read_text(encoding="utf-8")


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


def test_the_page_lists_every_shipped_policy_beside_the_setting() -> None:
    (line,) = [line for line in PAGE.splitlines() if line.startswith("policy: three-stage ")]
    assert {each for each in policy_names() if each not in line} == set()


def test_messages_that_the_page_explains_are_those_of_the_program() -> None:
    table = PAGE.partition("| what you see | why |")[2].partition("\n\n")[0]
    shown = re.findall(r"^\| `(.*?)`", table, re.MULTILINE)
    sources = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "platform").rglob("*.py"))
    # Numbers and names are filled in.
    unknown = {
        message: part
        for message in shown
        for part in re.split(r"\d+|[:;] ?|two|one|the cluster|server size|size|cores|is evaluating", message)
        if part.strip() not in sources
    }
    assert len(shown) >= 10 and unknown == {}
