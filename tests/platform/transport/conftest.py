"""A certificate for this machine, for the whole room."""

from __future__ import annotations

import pytest

from elastrec.platform.transport import TlsConfig
from tests.certificates import certify


@pytest.fixture(scope="package")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsConfig:
    found = TlsConfig.from_folder(certify(tmp_path_factory.mktemp("tls")))
    assert found is not None
    return found
