"""Certificates for this machine, created for a test."""

from __future__ import annotations

import subprocess
from pathlib import Path

from elastrec.platform.specs import environment


def certify(folder: Path) -> Path:
    """Puts a root, a certificate of localhost and its key into the folder, under the names that pods look for."""
    certificate = folder / environment.CERTIFICATE_FILE
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command += ["-keyout", str(folder / environment.KEY_FILE), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    (folder / environment.CA_FILE).write_bytes(certificate.read_bytes())
    return folder
