"""`data inspect` and `data cluster` on a generated log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from elastrec.platform.cli.commands.data import data
from elastrec.platform.cli.data_files import write_job
from elastrec.platform.data.generating.generator import GenerateSpec, generate, training_data_for
from elastrec.platform.specs.errors import DataError, SpecError


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logs") / "clicks"
    spec = GenerateSpec(path=str(path), rows_per_day=2_000, dense=1, sparse=3, lists=1, list_length=20)
    generate(spec)
    write_job(str(path), training_data_for(spec))
    return path


def _run(*arguments: str) -> str:
    result = CliRunner().invoke(data, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_inspect_shows_features_savings_and_a_picture(log: Path, tmp_path: Path) -> None:
    text = _run("inspect", str(log), "--picture", str(tmp_path / "sessions.png"))
    assert "2,000 rows" in text and "L1" in text and "looked up and pooled" in text
    assert (tmp_path / "sessions.png").read_bytes()[:4] == b"\x89PNG"


def test_inspect_as_json_holds_every_figure(log: Path) -> None:
    found = json.loads(_run("inspect", str(log / "job.yaml"), "--output", "json", "--partition", "2026-01-01"))
    assert found["proposal"]["groups"] == [["L1"]]
    assert {each["name"] for each in found["features"]} == {"C1", "C2", "C3", "L1"}
    assert found["sent"]["ratio"] > 1


def test_a_single_row_is_one_row(log: Path) -> None:
    text = _run("inspect", str(log), "--rows", "1")
    assert text.startswith("1 row, 1 session, 1.00 rows per session") and "1 rows" not in text


def test_cluster_writes_partitions_and_a_job_file_once(log: Path, tmp_path: Path) -> None:
    first = _run("cluster", str(log), str(tmp_path / "out"), "--partition", "2026-01-01")
    assert "2,000 rows" in first and "train on it" in first
    assert json.loads(_run("inspect", str(tmp_path / "out"), "-o", "json"))["rows"] == 2_000
    reports = json.loads(_run("cluster", str(log), str(tmp_path / "out"), "-o", "json"))["partitions"]
    assert [report["partition"] for report in reports] == ["day=2026-01-01", "day=2026-01-02"]


def test_cluster_can_store_distinct_rows_once(log: Path, tmp_path: Path) -> None:
    plain = json.loads(_run("inspect", str(log), "-o", "json", "--partition", "2026-01-01"))
    text = _run("cluster", str(log), str(tmp_path / "auto"), "--deduplicate", "auto")
    assert text.count("each distinct row of L1 is stored once") == 2
    _run("cluster", str(log), str(tmp_path / "named"), "--deduplicate", "C1, C2;L1", "--partition", "2026-01-01")
    for folder in ("auto", "named"):
        found = json.loads(_run("inspect", str(tmp_path / folder), "-o", "json", "--partition", "2026-01-01"))
        # The same rows in another order of time: what is counted stays.
        assert found["proposal"] == plain["proposal"] and found["session_sizes"] == plain["session_sizes"]
    assert plain["stored_once"]["before"] == plain["storage"]["after"]
    with pytest.raises(DataError, match=r"\['C9'\] is not allowed"):
        _run("cluster", str(log), str(tmp_path / "wrong"), "--deduplicate", "C9")


def test_a_folder_without_a_job_file_and_a_log_without_sessions_are_refused(log: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"a folder that holds job\.yaml"):
        _run("inspect", str(tmp_path))
    with pytest.raises(DataError, match="'visit' is not allowed"):
        _run("cluster", str(log), str(tmp_path / "out"), "--session", "visit")


def test_a_description_of_another_folder_uses_the_folder_in_it(log: Path, tmp_path: Path) -> None:
    (tmp_path / "description.yaml").write_text((log / "job.yaml").read_text().replace(str(log), "/nowhere"))
    text = _run("inspect", str(log), "--description", str(tmp_path / "description.yaml"), "--rows", "500")
    assert "500 rows" in text
