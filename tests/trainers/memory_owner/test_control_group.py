"""The memory figures of a pod's control group, in both versions, inside and outside of a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastrec.trainers.memory_owner.control_group import ControlGroup

EVENTS = {
    "memory.events": "low 0\noom 2\noom_kill 3\noom_group_kill 0\n",
    "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
}


def group(folder: Path, membership: str, files: dict[str, str]) -> ControlGroup:
    (folder / "membership").write_text(membership)
    for name, text in files.items():
        (folder / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "root" / name).write_text(text)
    return ControlGroup(folder / "membership", folder / "root")


@pytest.mark.parametrize(
    ("membership", "folder", "limit", "events"),
    [
        ("0::/pods/a\n", "pods/a", "memory.max", "memory.events"),
        ("0::/\n", ".", "memory.max", "memory.events"),
        ("9:cpu:/x\n4:memory:/pods/a\n0::/\n", "memory/pods/a", "memory.limit_in_bytes", "memory.oom_control"),
        ("4:memory,cpu:/docker/1f\n0::/\n", "memory", "memory.limit_in_bytes", "memory.oom_control"),
        ("3:cpu:/x\n0::/pods/a\n", "unified/pods/a", "memory.max", "memory.events"),
    ],
    ids=[
        "version 2",
        "version 2, in a container",
        "version 1",
        "version 1, in a container",
        "both, memory in version 2",
    ],
)
def test_limit_and_kills_are_those_of_the_pod(
    tmp_path: Path, membership: str, folder: str, limit: str, events: str
) -> None:
    pod = group(tmp_path, membership, {f"{folder}/{limit}": "1048576\n", f"{folder}/{events}": EVENTS[events]})
    assert (pod.limit_bytes(), pod.memory_kills()) == (1048576, 3)


def test_the_own_control_group_takes_precedence_over_the_root(tmp_path: Path) -> None:
    files = {f"memory{part}/{name}": text for part, name, text in (
        ("", "memory.limit_in_bytes", "7"), ("", "memory.oom_control", "oom_kill 9\n"),
        ("/a", "memory.limit_in_bytes", "5"), ("/a", "memory.oom_control", "oom_kill 1\n"),
    )}  # fmt: skip
    own = group(tmp_path, "4:memory:/a\n", files)
    assert (own.limit_bytes(), own.memory_kills()) == (5, 1)


def test_without_a_group_or_its_limit_the_limit_is_unknown(tmp_path: Path) -> None:
    unlimited = group(tmp_path, "0::/a\n", {"a/memory.max": "max\n", "a/memory.events": "oom 0\n"})
    assert (unlimited.limit_bytes(), unlimited.memory_kills()) == (None, 0)
    unknown = ControlGroup(tmp_path / "not there", tmp_path)
    assert (unknown.limit_bytes(), unknown.memory_kills()) == (None, 0)
    other = group(tmp_path, "3:cpu:/\n", {})
    assert (other.limit_bytes(), other.memory_kills()) == (None, 0)
