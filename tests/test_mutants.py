"""The runner of mutants separates killed mutants from survivors; test_house.py checks the list against the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import Mutant, run

pytestmark = pytest.mark.services

CAUGHT = Mutant("caught", "a sum", "checkpoints/add.py", "a + b", "a - b", ("test_add.py::test_sum",))
MISSED = Mutant("missed", "a name", "checkpoints/add.py", "first", "other", ("test_add.py",))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """One function, one test of it."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "add.py").write_text("NAME = 'first'\n\n\ndef add(a, b):\n    return a + b\n")
    test = "from elastrec.checkpoints.add import add\n\n\ndef test_sum():\n    assert add(1, 2) == 3\n"
    (tmp_path / "test_add.py").write_text(test)
    return tmp_path


def test_a_mutant_that_no_test_sees_is_a_failure_and_named(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (project / "checkpoints" / "add.py").read_text()
    assert run(project, [CAUGHT, MISSED]) == 1
    said = capsys.readouterr().out
    assert "caught killed" in said and "missed survived" in said and "1 of 2 killed; not: missed" in said
    assert (project / "checkpoints" / "add.py").read_text() == before
    assert run(project, [CAUGHT]) == 0


def test_a_mutant_that_cannot_be_tried_never_counts_as_caught(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = Mutant("gone", "", "checkpoints/add.py", "not there", "", CAUGHT.tests)
    no_test = Mutant("no_test", "", "checkpoints/add.py", "a + b", "a", ("test_add.py::test_other",))
    assert run(project, [gone, no_test]) == 2
    said = capsys.readouterr().out
    assert "gone: its text stands 0 times" in said and "no_test: there is no test_add.py::test_other" in said
    broken = Mutant("broken", "", "checkpoints/add.py", "def add(", "def (", ("test_add.py",))
    assert run(project, [broken]) == 1
    assert "no tests run (exit code" in capsys.readouterr().out


def test_tests_that_are_red_without_a_mutant_prove_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "test_add.py").write_text("def test_sum():\n    assert False\n")
    assert run(project, [CAUGHT]) == 2
    assert "unchanged code: red" in capsys.readouterr().out
