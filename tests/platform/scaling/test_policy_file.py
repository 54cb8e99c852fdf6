"""A policy in a file of its own, without a package."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastrec.platform.scaling.policies.static import Static
from elastrec.platform.scaling.policy import load_policy, policy_names
from elastrec.platform.specs.errors import ScalingError
from elastrec.platform.specs.scaling import load_scaling

GOOD = """
from dataclasses import dataclass
from elastrec.platform.scaling.policies.static import Static

@dataclass
class Mine(Static):
    name: str = "mine"
"""


def written(folder: Path, text: str = GOOD) -> Path:
    file = folder / "my_policy.py"
    file.write_text(text)
    return file


def test_a_class_in_a_file_is_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path)
    assert load_policy(f"{file}:Mine").name == "mine"
    monkeypatch.chdir(tmp_path)
    assert isinstance(load_policy("my_policy.py:Mine"), Static)


def test_a_file_that_was_changed_is_read_again(tmp_path: Path) -> None:
    file = written(tmp_path)
    load_policy(f"{file}:Mine")
    written(tmp_path, GOOD.replace('"mine"', '"another name"'))
    assert load_policy(f"{file}:Mine").name == "another name"


def test_two_files_of_one_name_are_two_policies(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    one, other = written(tmp_path), written(tmp_path / "other", GOOD.replace('"mine"', '"theirs"'))
    assert [load_policy(f"{file}:Mine").name for file in (one, other, one)] == ["mine", "theirs", "mine"]


@pytest.mark.parametrize(
    ("text", "symbol", "message"),
    [
        (GOOD, "Other", "my_policy.py has no Other; its classes are Mine; name one of them"),
        ("x = 1\n", "Mine", "it defines no class"),
        (GOOD, "", "FILE.py:CLASS"),
        ("import no_such_package\n", "Mine", "cannot be imported: ModuleNotFoundError: .*, line 1; fix it"),
        ("class Mine:\n    pass\nx = 1 +\n", "Mine", "cannot be imported: SyntaxError: .*, line 3; fix it"),
        ("class Mine:\n    pass\n", "Mine", "Mine has no name, propose, select"),
        (GOOD + "    def __init__(self, step):\n        pass\n", "Mine", r"Mine\(\) failed: TypeError"),
        (GOOD + "    def __post_init__(self):\n        1 / 0\n", "Mine", r"failed: ZeroDivisionError: .*, line 9; fix"),
    ],
)
def test_a_problem_of_a_file_is_shown_with_its_line(tmp_path: Path, text: str, symbol: str, message: str) -> None:
    with pytest.raises(ScalingError, match=message):
        load_policy(f"{written(tmp_path, text)}:{symbol}")


def test_a_missing_file_is_named_with_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ScalingError, match=f"there is no file {tmp_path}/none.py"):
        load_policy("none.py:Mine")


def test_the_file_is_relative_to_the_settings_that_name_it(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "scaling.yaml").write_text("policy: my_policy.py:Mine\n")
    assert load_policy(load_scaling(tmp_path / "scaling.yaml").policy).name == "mine"


@pytest.mark.parametrize("name", policy_names())
def test_a_registered_name_is_kept_unchanged(tmp_path: Path, name: str) -> None:
    (tmp_path / "scaling.yaml").write_text(f"policy: {name}\n")
    assert load_scaling(tmp_path / "scaling.yaml").policy == name
