"""A certificate for this machine, made anew."""

from __future__ import annotations

import subprocess

import pytest

from elastrec.platform.transport import TlsConfig


@pytest.fixture(scope="package")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsConfig:
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(command, check=True, capture_output=True)
    certificate = (folder / "cert.pem").read_bytes()
    return TlsConfig(certificate, certificate, (folder / "key.pem").read_bytes())
