from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from elastrec.checkpoints import s3_store
from elastrec.checkpoints.store import Store, open_store
from elastrec.platform.specs.job import TrainingJob


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_uri(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    for name, value in {
        "AWS_ENDPOINT_URL_S3": s3_endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    s3_store._probed.clear()
    bucket = f"bucket-{abs(hash(request.node.nodeid))}"
    boto3.client("s3").create_bucket(Bucket=bucket)
    return f"s3://{bucket}/team/checkpoints"


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Every test that takes this runs once on a folder and once on an S3 server."""
    return open_store(tmp_path / "store" if request.param == "file" else request.getfixturevalue("s3_uri"))


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
