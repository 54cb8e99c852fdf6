"""The version of the running code, for messages about incompatible processes."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_ROOMS = ("platform", "trainers", "checkpoints")
_ROOT = Path(__file__).parents[2]


@cache
def code_version() -> str:
    """For example `0.1.0 (code 3f2a91c0)`: the release, and a digest of the files as they were at the first call.

    Two installations of one release may differ (an editable checkout, a half-finished upgrade); their digests do.
    """
    try:
        release = version("elastrec")
    except PackageNotFoundError:
        release = "unreleased"
    digest = hashlib.sha256()
    for room in _ROOMS:
        for file in sorted((_ROOT / room).rglob("*.py")):
            digest.update(str(file.relative_to(_ROOT)).encode() + b"\0" + file.read_bytes())
    return f"{release} (code {digest.hexdigest()[:8]})"
