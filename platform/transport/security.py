"""Tokens and TLS material. Secrets live in files that only their owner can read, never in logs or arguments."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path

from elastrec.platform.specs import environment
from elastrec.platform.specs.text.whole_file import write_whole


def new_token() -> str:
    """256 random bits as text."""
    return secrets.token_urlsafe(32)


def write_secret(path: Path, text: str) -> None:
    """Writes a file that only the owner can read; replaces an older one atomically."""
    write_whole(path, text.encode(), mode=0o600)


def job_server_name(job_id: str) -> str:
    """The name in the certificate of a job's servers, on every host."""
    return f"{job_id}.elastrec"


@dataclass(frozen=True)
class TlsConfig:
    """PEM texts. A server needs certificate and key, a client the root that signed the certificate.

    Attributes:
        server_name: the name that a server's certificate must contain; empty: the host of the server's address.
    """

    root_pem: bytes = field(repr=False, default=b"")
    certificate_pem: bytes = field(repr=False, default=b"")
    key_pem: bytes = field(repr=False, default=b"")
    server_name: str = ""

    @staticmethod
    def from_folder(folder: Path, server_name: str = "") -> TlsConfig | None:
        """The TLS material of a folder, None when it has none."""
        root = folder / environment.CA_FILE
        if not root.exists():
            return None
        certificate, key = folder / environment.CERTIFICATE_FILE, folder / environment.KEY_FILE
        return TlsConfig(
            root.read_bytes(),
            certificate.read_bytes() if certificate.exists() else b"",
            key.read_bytes() if key.exists() else b"",
            server_name,
        )


@dataclass(frozen=True)
class JobSecret:
    """The credentials for the pods of one job, and for nothing else.

    Attributes:
        tls: None: its pods use plain TCP.
    """

    token: str = field(repr=False)
    tls: TlsConfig | None = None
