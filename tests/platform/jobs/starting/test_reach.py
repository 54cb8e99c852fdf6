"""Paths that pods of a remote cluster can reach and that are accepted; tests/bad_input has the refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elastrec.platform.clusters import ClusterConfig
from elastrec.platform.clusters.backends import decode_config
from elastrec.platform.clusters.local.config import LocalConfig
from elastrec.platform.jobs import Platform, prepare
from elastrec.platform.jobs.starting.reach import refuse_unreachable
from elastrec.platform.specs.errors import SpecError
from elastrec.platform.specs.job import TrainingJob
from tests.platform.master.fakes import FakeLauncher, job
from tests.remote_cluster import FarConfig, install

FAR = FarConfig()
MLFLOW, WORK = "http://mlflow.example.org:5000", "s3://bucket/work"


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def platform(config: ClusterConfig = FAR, tracking: str = MLFLOW, work: str = WORK) -> Platform:
    return Platform(FakeLauncher(), config, tracking, work, Path.cwd())  # type: ignore[arg-type]


def with_paths(data: str = "s3://bucket/clicks", transform: str | None = None, **spec: Any) -> TrainingJob:
    sections: dict[str, Any] = {"data": {"path": data, "sparse": [{"name": "user"}], "transform": transform}}
    return job(**{**sections, "checkpoint": {"store": "hdfs://name/checkpoints"}, **spec})


def problems(platform: Platform, training_job: TrainingJob) -> list[str]:
    try:
        refuse_unreachable(platform, training_job)
    except SpecError as error:
        return [problem.path for problem in error.problems]
    return []


def test_uris_of_other_machines_pass() -> None:
    assert problems(platform(), with_paths()) == []
    assert problems(platform(tracking="mysql+pymysql://user:p@database/mlflow"), with_paths()) == []


def test_on_the_local_cluster_everything_on_this_machine_passes(tmp_path: Path) -> None:
    local = platform(LocalConfig(address="", token=""), f"sqlite:///{tmp_path}/mlflow.db", str(tmp_path))
    assert problems(local, with_paths(str(tmp_path))) == []


def test_a_folder_that_every_node_has_passes_and_one_with_a_similar_name_does_not() -> None:
    config = FarConfig(shared_folders=("/mnt/share",))
    shared = platform(config, work="/mnt/share/work")
    assert problems(shared, with_paths("/mnt/share/clicks", checkpoint={"store": "file:///mnt/share/store"})) == []
    assert problems(shared, with_paths("/mnt/shared/clicks")) == ["spec.data.path"]
    assert problems(shared, with_paths("/mnt/share/../home/clicks")) == ["spec.data.path"]


def test_an_sqlite_file_is_refused_in_a_shared_folder_too() -> None:
    shared = platform(FarConfig(shared_folders=("/mnt/share",)), "sqlite:////mnt/share/mlflow.db")
    assert problems(shared, with_paths()) == ["tracking_uri"]


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:9000", "127.0.0.1", "127.1.2.3:80", "[::1]:9000", "u:p@localhost"]
)
def test_a_loopback_address_is_refused_for_other_machines(host: str) -> None:
    assert problems(platform(tracking=f"http://{host}"), with_paths()) == ["tracking_uri"]


@pytest.mark.parametrize("host", ["localhost.example.org", "mylocalhost", "10.127.0.1", "h/127.0.0.1x"])
def test_a_host_whose_name_looks_alike_passes(host: str) -> None:
    assert problems(platform(tracking=f"http://{host}"), with_paths()) == []


def test_a_model_of_an_installed_package_passes_and_one_of_a_loose_module_does_not(tmp_path: Path) -> None:
    (tmp_path / "loose_module.py").write_text("class Net: ...\n")
    for path, wrong in (("numpy.models:Net", False), ("loose_module:Net", True)):
        fields = ["spec.model.architecture", "spec.data.transform"] if wrong else []
        asked = with_paths(model={"architecture": path}, transform=path)
        assert problems(platform(), asked) == fields


def test_a_relative_checkpoint_store_is_below_the_work_uri(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as refused:
        prepare(platform(work=str(tmp_path)), with_paths(checkpoint={"store": "checkpoints"}), "clicks-1")
    assert [problem.path for problem in refused.value.problems] == ["work_uri"]
    assert list(tmp_path.iterdir()) == [tmp_path / "far_cluster-1.0.dist-info"]


def test_shared_folders_are_absolute() -> None:
    with pytest.raises(SpecError, match="shared_folders: 'data' is not allowed; allowed: absolute paths"):
        decode_config('{"backend": "far", "shared_folders": ["data"]}', "the file")
