"""The logs of pods are kept after the pods are gone."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from tests.faults.campaign.keeping import Keeper


def make_pod(agent: Path, uid: str, name: str, made_seconds: int, text: str) -> Path:
    pod = agent / "pods" / uid
    (pod / "log").mkdir(parents=True)
    (pod / "log" / "00000000000000000000").write_text(text)
    plan = pod / "plan.1.json"
    plan.write_text(json.dumps({"environment": {"ELASTREC_POD": name}}))
    os.utime(plan, (made_seconds, made_seconds))
    return pod


def test_a_pod_whose_name_is_given_again_keeps_its_log_and_the_later_ones_follows(tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    first = make_pod(agent, "uid-b", "j-ps-0", 100, "first\n")
    (agent / "agent.log").touch()
    keeper = Keeper(agent, tmp_path / "kept")
    keeper.keep()
    shutil.rmtree(first)
    make_pod(agent, "uid-a", "j-ps-0", 200, "second\n")
    make_pod(agent, "uid-c", "j-ps-1", 150, "other\n")
    keeper.keep()
    assert keeper.pods() == ["j-ps-0", "j-ps-1"]
    assert keeper.log_of("j-ps-0") == "first\nsecond\n" and keeper.log_of("j-ps-1") == "other\n"
