"""`python -m benchmarks`: benchmarks by their names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from benchmarks.__main__ import main, run_all
from benchmarks.common.names import benchmarks
from tests.benchmarks.calling import benchmark
from tests.mutants import load
from tests.test_house import ROOMS, sources

WITHOUT_GOALS = {"checkpoint"}
NO_MUTATION_TRIED = {
    "dedup_worker", "equal_models", "parameter_server", "parameter_server_peer", "scaling_out", "selection", "startup",
}  # fmt: skip
"""Benchmarks whose docstring names none yet; a new one must name one."""


def test_every_module_of_a_room_is_a_benchmark_with_a_name_of_its_own() -> None:
    files = list(benchmarks().values())
    rooms = {file.parent for file in files}
    assert len(files) >= 31
    assert len(files) == sum(len(list(room.glob("[a-z]*.py"))) for room in rooms)
    assert not [file for file in files if "run_benchmark(__doc__" not in file.read_text()]


def test_every_benchmark_is_in_a_room() -> None:
    root = Path(__file__).parents[2] / "benchmarks"
    assert not list(root.glob("[a-z]*.py"))
    shared = [file for room in ("common", "processes") for file in (root / room).glob("*.py")]
    calls = [node for file in shared for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    assert len(calls) > 100
    assert "run_benchmark" not in {getattr(call.func, "id", None) for call in calls}


def test_without_a_name_all_benchmarks_are_listed_with_descriptions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    entries = capsys.readouterr().out.replace("\n ", " ").splitlines()
    assert [entry.split()[0] for entry in entries] == list(benchmarks())
    assert all(len(entry.split()) > 3 and entry[-1] in ".:" for entry in entries)


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_explains_the_command_and_lists_all_benchmarks(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([option]) == 0
    printed = capsys.readouterr().out
    assert "python -m benchmarks NAME --help" in printed and all(f"\n{name} " in printed for name in benchmarks())


def test_an_unknown_name_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["raeder"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("'raeder' is no benchmark; allowed: all, ") and "dedup_reader" in error


def test_options_reach_the_benchmark() -> None:
    ended = benchmark("selection", "--no-such-option")
    assert ended.returncode == 2 and "--no-such-option" in ended.stderr


def test_all_continues_after_a_failed_benchmark_and_names_it(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = tmp_path / "benchmarks" / "small"
    room.mkdir(parents=True)
    (tmp_path / "benchmarks" / "__init__.py").touch()
    (room / "first.py").write_text("raise SystemExit('no TensorFlow here')")
    (room / "second.py").write_text("import sys\nprint('figures of the second', *sys.argv[1:])")
    monkeypatch.chdir(tmp_path)
    assert run_all({"first": room / "first.py", "second": room / "second.py"}, ["--save"]) == 1
    lines = capfd.readouterr().out.splitlines()
    assert lines == ["== first", "== second", "figures of the second --save", "without figures: first"]


def defined_in_the_product() -> set[str]:
    """Names of functions, methods, classes, and of constants of modules."""
    found = set()
    for tree in (ast.parse(file.read_text()) for room in ROOMS for file in sources(room)):
        defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        found |= {node.name for node in ast.walk(tree) if isinstance(node, defined)}
        assigned = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
        found |= {each.id for node in assigned for each in ast.walk(node) if isinstance(each, ast.Name)}
    return found


def test_every_benchmark_with_goals_names_code_of_the_product_whose_mutation_turns_it_red() -> None:
    names, mutants, wrong = defined_in_the_product(), {mutant.name for mutant in load()}, {}
    for name, file in benchmarks().items():
        source = file.read_text()
        if name in WITHOUT_GOALS:
            assert "at_least" not in source and "at_most" not in source, f"{name} has a goal"
            continue
        paragraphs = (ast.get_docstring(ast.parse(source)) or "").split("\n\n")
        about = " ".join(paragraph for paragraph in paragraphs if re.search(r"\bred\b", paragraph))
        quoted = re.findall(r"`([^`]+)`", about)
        words = {word for code in quoted for word in re.findall(r"\w{4,}", code)}
        if not words & names and not mutants & set(quoted):
            wrong[name] = quoted
    assert wrong.keys() == NO_MUTATION_TRIED, f"name a mutation of the product, and try it: {wrong}"
