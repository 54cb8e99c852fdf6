"""The environment of an exported model: exact versions, and wheels that are in no index.

MLflow installs `requirements.txt` with pip or uv. It contains all direct and indirect dependencies of the package in
the versions with which the model was checked, so that later releases have no effect.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import structlog
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from elastrec.trainers.export.wheel import PACKAGE, installed_package, write_stand_in, write_wheel

log = structlog.get_logger(__name__)

STAND_INS = {"fbgemm-gpu": "fbgemm-gpu-cpu"}
"""torchrec names the CUDA build of its operators; an installer would lay both builds over each other."""


def pinned(users: Iterable[str] = ()) -> dict[str, str]:
    """Versions of the package and of all that it needs, by name, sorted; of `STAND_INS` those of their providers.

    Args:
        users: distributions of the user's model and transform, which the exported model needs, too.

    Raises:
        HistoryError: the package has no metadata.
    """
    versions: dict[str, str] = {}
    waiting, seen = [(PACKAGE, ""), *((canonicalize_name(name), "") for name in users)], set()
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        distribution = _installed(STAND_INS.get(name, name))
        if distribution is None:
            log.warning("requirement_not_installed", name=name, consequence="the installer chooses its version")
            continue
        versions[name] = _public(distribution)
        for needed in map(Requirement, distribution.requires or ()):
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                waiting += [(canonicalize_name(needed.name), each) for each in ("", *needed.extras)]
    return dict(sorted(versions.items()))


def _installed(name: str) -> Distribution | None:
    if name == PACKAGE:
        return installed_package()
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def _public(distribution: Distribution) -> str:
    """Without the local part: an index has 2.13.0, whose builds are called 2.13.0+cpu."""
    return Version(distribution.version).public


def write_wheels(folder: Path, versions: dict[str, str]) -> list[Path]:
    """Packs what of `pinned` no index has: the package, and a stand-in for each whose provider is installed.

    Raises:
        HistoryError: the package's files cannot be found.
    """
    stand_ins = [name for name in STAND_INS if name in versions]
    return [
        write_wheel(folder),
        *(write_stand_in(folder, name, STAND_INS[name], versions[name]) for name in stand_ins),
    ]
