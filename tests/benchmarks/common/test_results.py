"""Results are stored with commit and date of the measurement; other documents are refused."""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.common import figures, results
from benchmarks.common.figures import Figure
from benchmarks.common.names import benchmarks
from benchmarks.common.results import RESULTS, Origin, load, store

OLD = Origin(datetime.date(2026, 1, 1), "a" * 40)
NEW = Origin(datetime.date(2026, 1, 2), "b" * 40, others_cores=0.3)


def document(name: str, value: float) -> dict[str, object]:
    return Figure(name, value, "×", at_least=1.0, settings={"sizes": (1, 2)}).document()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit."""
    (tmp_path / "code.py").write_text("one = 1\n")
    for command in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -q -m one"):
        subprocess.run(["git", "-C", str(tmp_path), *command.split()], check=True)
    return tmp_path


def test_a_figure_that_is_measured_again_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    store([document("reader.memory", 1.0), document("reader.rows", 2.0)], OLD, tmp_path)
    assert store([document("reader.memory", 3.0), document("calls.tcp", 4.0)], NEW, tmp_path) == [
        tmp_path / "reader.json",
        tmp_path / "calls.json",
    ]
    kept = [(each.figure, each.value, each.measured) for each in load(tmp_path)["reader"]]
    assert kept == [("reader.memory", 3.0, NEW), ("reader.rows", 2.0, OLD)]


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([document("calls.tcp", 1.0), document("reeder.rows", 2.0)], "no benchmark has the name 'reeder'"),
        ([document("calls.tcp", 1.0), {"figure": "calls.local"}], "missing required field `value`"),
    ],
)
def test_nothing_is_kept_of_documents_one_of_which_is_wrong(
    documents: list[dict[str, object]], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        store(documents, OLD, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_file_with_the_figures_of_another_benchmark_is_refused(tmp_path: Path) -> None:
    store([document("reader.memory", 1.0)], OLD, tmp_path)
    (tmp_path / "reader.json").rename(tmp_path / "calls.json")
    with pytest.raises(ValueError, match=r"reader\.memory is no figure of calls"):
        load(tmp_path)


def test_every_file_of_results_is_one_of_a_benchmark() -> None:
    assert load().keys() <= benchmarks().keys()
    assert len(list(RESULTS.iterdir())) == len(load()) > 30


def test_code_that_is_not_committed_is_not_measured_for_keeping(repository: Path) -> None:
    head = results.measured_commit(repository)
    assert len(head) == 40 and results.full_commit(head[:8], repository) == head
    (repository / "docs").mkdir()
    (repository / "docs" / "figures.md").write_text("written from results")
    assert results.measured_commit(repository) == head
    (repository / "code.py").write_text("one = 2\n")
    with pytest.raises(ValueError, match=r"code\.py is not committed"):
        results.measured_commit(repository)


def test_figures_of_an_unknown_commit_are_refused(repository: Path) -> None:
    with pytest.raises(ValueError, match=r"--commit 1234567: no commit of this repository"):
        results.full_commit("1234567", repository)


def test_figures_of_a_benchmark_are_stored_with_the_commit_at_its_start(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, kept = results.measured_commit(repository), tmp_path / "kept"
    monkeypatch.setattr(results.measured_commit, "__defaults__", (repository,))
    monkeypatch.setattr(results.store, "__defaults__", (kept,))
    monkeypatch.setattr(sys, "argv", ["benchmark", "--save"])

    def measure(_: argparse.Namespace) -> list[Figure]:
        (repository / "code.py").write_text("changed meanwhile\n")
        return [Figure("calls.tcp", 4.5, "×", at_least=2.0)]

    figures.run_benchmark("", measure)
    (result,) = load(kept)["calls"]
    assert (result.value, result.met, result.measured.commit) == (4.5, True, head)
    assert result.measured.date == datetime.date.today() and result.measured.others_cores is not None
    monkeypatch.setattr(sys, "argv", ["benchmark", "--save"])
    with pytest.raises(SystemExit):
        figures.run_benchmark("", lambda _: pytest.fail("measured code that is not committed"))


def test_figures_of_jobs_are_stored_without_a_load_of_others_which_would_be_that_of_their_pods(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    monkeypatch.setattr(results.measured_commit, "__defaults__", (repository,))
    monkeypatch.setattr(results.store, "__defaults__", (kept,))
    monkeypatch.setattr(sys, "argv", ["benchmark", "--save"])
    figures.run_benchmark("", lambda _: [Figure("live_mix.kills", 0.0, "", at_most=0)], has_pods=True)
    (result,) = load(kept)["live_mix"]
    assert result.measured.others_cores is None


_STARTS_PODS = re.compile(r"private_platform|private_home|started_nodes|ServiceStack|recorded_runs import")


@pytest.mark.parametrize("name", benchmarks())
def test_benchmarks_that_start_a_node_agent_say_so(name: str) -> None:
    text = benchmarks()[name].read_text()
    assert ("has_pods=True" in text) == bool(_STARTS_PODS.search(text))


def test_printed_figures_are_added_with_the_commit_that_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed, kept = tmp_path / "printed.json", tmp_path / "kept"
    printed.write_text(json.dumps([document("calls.tcp", 4.5)]))
    assert results.main([str(printed), "--commit", "HEAD", "--date", "2026-01-02"], kept) == 0
    (result,) = load(kept)["calls"]
    assert result.measured == Origin(datetime.date(2026, 1, 2), results.full_commit("HEAD"))
    printed.write_text(json.dumps([{"figure": "calls.local"}]))
    assert results.main([str(printed), "--commit", "HEAD", "--date", "2026-01-02"], kept) == 2
    assert "not figures as --output json prints them" in capsys.readouterr().err
