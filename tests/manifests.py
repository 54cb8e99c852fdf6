"""Manifests in files with fixed names, for processes that a test starts."""

from __future__ import annotations

import msgspec

from elastrec.platform.data.entries import DataManifest
from elastrec.platform.data.files import write_bytes


def write_manifest(manifest: DataManifest, uri: str) -> None:
    """Writes a manifest as JSON."""
    write_bytes(uri, msgspec.json.encode(manifest))
