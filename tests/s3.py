"""The S3 server that tests of stores and of data start."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import boto3
import pytest
from moto.server import ThreadedMotoServer

from elastrec.checkpoints.stores import s3_store
from elastrec.checkpoints.stores import store as store_module


@contextmanager
def s3_server() -> Iterator[str]:
    """A server that is empty; its endpoint."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def store_at(endpoint: str, name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """URI of a checkpoint store in a new bucket, which this process and those that it starts can reach."""
    store_module._probed.clear()
    s3_store._made_client.cache_clear()  # tests replace methods of a client
    return f"{bucket_at(endpoint, name, monkeypatch)}/team/checkpoints"


def bucket_at(endpoint: str, name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """URI of a new bucket, which this process and those that it starts can reach."""
    for variable, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ENDPOINT_URL_S3": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(variable, value)
    # It keeps the credentials with which an earlier test has begun it.
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    boto3.client("s3").create_bucket(Bucket=name)
    return f"s3://{name}"
