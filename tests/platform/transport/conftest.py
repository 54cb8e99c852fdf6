"""A certificate for this machine, shared by all tests, and a client for the server of each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from elastrec.platform.transport import RpcClient, RpcServer, TlsConfig
from tests.certificates import certify
from tests.platform.transport.messages import TOKEN


@pytest.fixture(scope="package")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsConfig:
    found = TlsConfig.from_folder(certify(tmp_path_factory.mktemp("tls")))
    assert found is not None
    return found


@pytest.fixture
def client(server: RpcServer) -> Iterator[RpcClient]:
    """Of the fixture `server`, which serves with TOKEN."""
    client = RpcClient(server.address, TOKEN)
    yield client
    client.close()
