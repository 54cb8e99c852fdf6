"""Files that commands write: a job file beside a log, reports, logs."""

from __future__ import annotations

import errno
import os
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from elastrec.platform.cli.commands.data import data
from elastrec.platform.cli.data_files import write_job
from elastrec.platform.cli.options import write_output
from elastrec.platform.data.generating.generator import GenerateSpec, generate
from elastrec.platform.data.generating.writers import PartitionWriter
from elastrec.platform.specs.data import SparseFeature, TrainingData
from elastrec.platform.specs.errors import DataError, ElastrecError
from elastrec.platform.specs.text.loading import load_job

DESCRIBED = TrainingData(path="clicks", sparse=(SparseFeature(name="C1"),))


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("Größe 1", "grosse-1"),
        ("día_é", "dia-e"),
        ("クリック", "clicks"),
        (f"{'a' * 29}-b", "a" * 29),
        ("clicks", "clicks"),
    ],
)
def test_the_job_beside_a_log_in_any_folder_is_valid(tmp_path: Path, folder: str, name: str) -> None:
    (tmp_path / folder).mkdir()
    job = load_job(Path(write_job(str(tmp_path / folder), DESCRIBED)))
    assert job.metadata.name == name and job.spec.data.path == str(tmp_path / folder)


def test_a_job_file_that_a_full_disk_cut_off_is_written_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as now, pytest.raises(DataError, match="No space left"):
        now.setattr(os, "fsync", full)
        write_job(str(tmp_path), DESCRIBED)
    assert list(tmp_path.iterdir()) == []
    assert load_job(Path(write_job(str(tmp_path), DESCRIBED))).spec.data.sparse == DESCRIBED.sparse


def test_the_command_that_trains_on_a_log_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    log = tmp_path / "my clicks"
    made = CliRunner().invoke(data, ["generate", str(log), "--rows-per-day", "4", "--dense", "1", "--sparse", "1"])
    assert made.exit_code == 0, made.output
    words = shlex.split(made.output.splitlines()[-1])
    assert words[-3:] == ["elastrec", "run", str(log / "job.yaml")]


def test_an_output_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "report.html"
    link = tmp_path / "latest.html"
    link.symlink_to(file)
    write_output(str(link), b"first", "the report")

    def full(descriptor: int, how: str) -> None:
        os.write(descriptor, b"s")
        os.close(descriptor)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with (
        monkeypatch.context() as now,
        pytest.raises(ElastrecError, match=r"latest\.html: the report cannot be written"),
    ):
        now.setattr(os, "fdopen", full)
        write_output(str(link), b"second", "the report")
    assert file.read_bytes() == b"first" and link.is_symlink() and len(list(tmp_path.iterdir())) == 2
    write_output(os.devnull, b"third", "the report")
    assert not Path(os.devnull).is_file()


def test_a_log_that_a_full_disk_cut_off_is_named_and_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(writer: PartitionWriter, clicks: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    log = tmp_path / "clicks"
    spec = GenerateSpec(path=str(log), rows_per_day=4, days=1, dense=1, sparse=1, lists=0)
    with monkeypatch.context() as now, pytest.raises(DataError, match=r"clicks: cannot be written .*the same call"):
        now.setattr(PartitionWriter, "write", full)
        generate(spec)
    assert [day.rows for day in generate(spec).days] == [4]
