from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from elastrec.checkpoints.stores.store import Store, open_store
from elastrec.platform.specs.job import TrainingJob
from tests.s3 import s3_server, store_at
from tools.stores import servers
from tools.stores.fetching import missing


def unique(prefix: str, request: pytest.FixtureRequest) -> str:
    """A name that no other test uses on the same server."""
    return f"{prefix}-{abs(hash(request.node.nodeid))}"


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def s3_uri(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    return store_at(s3_endpoint, unique("bucket", request), monkeypatch)


def require(server: str, library: str = "") -> None:
    """Skips the test where a server of `tools.stores`, or what it is reached with, is not here."""
    if library:
        pytest.importorskip(library, reason=f"{library} is not installed: tools/stores/requirements.txt")
    if lacking := missing(server):
        pytest.skip(lacking)


@pytest.fixture(scope="session")
def versity_server() -> Iterator[servers.S3]:
    require("s3")
    with servers.S3() as server:
        yield server


@pytest.fixture
def versity_uri(versity_server: servers.S3, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    return store_at(versity_server.endpoint, unique("bucket", request), monkeypatch)


@pytest.fixture(scope="session")
def azure_server() -> Iterator[servers.Azure]:
    require("azure", library="adlfs")
    with servers.Azure() as server:
        yield server


@pytest.fixture
def abfs_uri(azure_server: servers.Azure, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azure_server.connection)
    container = unique("container", request)
    fsspec.filesystem("abfs", skip_instance_cache=True).mkdir(container)
    return f"abfs://{container}/team/checkpoints"


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[servers.Gcs]:
    require("gcs", library="gcsfs")
    with servers.Gcs() as server:
        yield server


@pytest.fixture
def gs_uri(gcs_server: servers.Gcs, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_server.endpoint)
    bucket = unique("bucket", request)
    gcs_server.make_bucket(bucket)
    return f"gs://{bucket}/team/checkpoints"


@pytest.fixture(scope="session")
def hdfs_server() -> Iterator[servers.Hdfs]:
    require("hdfs")
    with servers.Hdfs() as server:
        yield server


@pytest.fixture
def webhdfs_uri(hdfs_server: servers.Hdfs, request: pytest.FixtureRequest) -> str:
    return f"webhdfs://tester@{hdfs_server.address}/{unique('team', request)}/checkpoints"


_SERVERS = [pytest.param(kind, marks=pytest.mark.services) for kind in ("versity", "abfs", "gs", "webhdfs")]


@pytest.fixture(params=["file", "s3", *_SERVERS])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Every test that takes this runs on a folder, on moto's S3 server, and on the other servers that are here."""
    found = open_store(
        tmp_path / "store" if request.param == "file" else request.getfixturevalue(f"{request.param}_uri")
    )
    found.create()
    return found


@pytest.fixture
def make_job() -> Callable[..., TrainingJob]:
    def make(
        *,
        name: str = "clicks",
        architecture: str = "dlrm",
        dimension: int = 4,
        sparse: tuple[str, ...] = ("ad", "user"),
        dense: tuple[str, ...] = ("age", "price"),
        **spec: Any,
    ) -> TrainingJob:
        options = spec.pop("options", {})
        return TrainingJob.model_validate(
            {
                "metadata": {"name": name},
                "spec": {
                    "model": {"architecture": architecture, "embedding_dimension": dimension, "options": options},
                    "data": {
                        "path": "clicks",
                        "sparse": [{"name": feature} for feature in sparse],
                        "dense": [{"name": feature} for feature in dense],
                    },
                    **spec,
                },
            }
        )

    return make
