"""The installed package as a wheel: what an exported model needs of elastrec, without an index that has it.

Packed from the files that this process imports, so that it works alike for an installed package and for a checkout in
editable mode, without a network or a build tool. The format: PEP 427, "The Wheel Binary Package Format 1.0".
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import zipfile
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

from elastrec.platform.specs.errors import HistoryError

PACKAGE = "elastrec"
SUB_PACKAGES = ("checkpoints", "dags", "operators", "platform", "trainers")
_WHEEL = "Wheel-Version: 1.0\nGenerator: elastrec\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_METADATA = ("METADATA", "entry_points.txt", "top_level.txt")
# The earliest moment that a zip file can hold: equal files make equal wheels.
_MOMENT = (1980, 1, 1, 0, 0, 0)


def write_wheel(folder: Path) -> Path:
    """Packs the package that is running into `folder`; returns the wheel.

    Raises:
        HistoryError: the package's files or its metadata cannot be found.
    """
    # A build leaves metadata of another form beside a checkout; the installation's own is wanted.
    installed = (each for each in distributions(name=PACKAGE) if each.read_text("METADATA"))
    found = next(installed, None)
    if found is None:
        raise HistoryError(f"{PACKAGE}: its installation has no METADATA; install it again")
    info = f"{PACKAGE}-{found.version}.dist-info"
    contents = {f"{PACKAGE}/{name}": file.read_bytes() for name, file in _files()}
    for name in _METADATA:
        text = found.read_text(name)
        if text is not None:
            contents[f"{info}/{name}"] = text.encode()
    contents[f"{info}/WHEEL"] = _WHEEL.encode()
    lines = [f"{name},{_digest(content)},{len(content)}" for name, content in contents.items()]
    contents[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""]).encode()
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{PACKAGE}-{found.version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            entry = zipfile.ZipInfo(name, _MOMENT)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return wheel


def _files() -> Iterator[tuple[str, Path]]:
    """Name within the package and place of each file, in a fixed order."""
    for sub_package in SUB_PACKAGES:
        # `platform` has no __init__.py, so that a checkout in editable mode has no place of it, only of what is in it.
        within = f"{sub_package}.specs" if sub_package == "platform" else sub_package
        spec = importlib.util.find_spec(f"{PACKAGE}.{within}")
        if spec is None or spec.origin is None:
            raise HistoryError(f"{PACKAGE}.{within} cannot be found; install the package again")
        root = Path(spec.origin).parents[within.count(".")]
        for file in sorted(root.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts and file.suffix not in (".pyc", ".nbi", ".nbc"):
                yield f"{sub_package}/{file.relative_to(root).as_posix()}", file


def _digest(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
