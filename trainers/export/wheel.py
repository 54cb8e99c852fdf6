"""The installed package as a wheel, for exported models without an index that contains elastrec.

Packed from the files that this process imports, so that it works alike for an installed package and for a checkout in
editable mode, without a network or a build tool. A build tag distinguishes wheels of one version, because MLflow uses
an existing environment for equal requirements. The format: PEP 427, "The Wheel Binary Package Format 1.0".
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

from elastrec.platform.specs.errors import HistoryError

PACKAGE = "elastrec"
SUB_PACKAGES = ("checkpoints", "dags", "operators", "platform", "trainers")
_WHEEL = "Wheel-Version: 1.0\nGenerator: elastrec\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_METADATA = ("METADATA", "entry_points.txt", "top_level.txt")
# The earliest moment that a zip file can hold: equal files make equal wheels.
_MOMENT = (1980, 1, 1, 0, 0, 0)


def installed_package() -> Distribution:
    """The installation that is running.

    Raises:
        HistoryError: it has no metadata.
    """
    # A build leaves metadata of another form beside a checkout; the installation's own is wanted.
    installed = (each for each in distributions(name=PACKAGE) if each.read_text("METADATA"))
    package = next(installed, None)
    if package is None:
        raise HistoryError(f"{PACKAGE}: its installation has no METADATA; install it again")
    return package


def write_wheel(folder: Path) -> Path:
    """Packs the package that is running into `folder`; returns the wheel.

    Raises:
        HistoryError: the package's files or its metadata cannot be found.
    """
    package = installed_package()
    texts = {name: text for name in _METADATA if (text := package.read_text(name)) is not None}
    return _write(
        folder, PACKAGE, package.version, {f"{PACKAGE}/{name}": file.read_bytes() for name, file in _files()}, texts
    )


def write_stand_in(folder: Path, name: str, provider: str, version: str) -> Path:
    """Packs a distribution without files, which requires the one that has them; returns the wheel."""
    metadata = (
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: {provider} provides its modules\n"
        f"Requires-Dist: {provider}=={version}\n"
    )
    return _write(folder, name, version, {}, {"METADATA": metadata})


def _write(folder: Path, name: str, version: str, contents: dict[str, bytes], texts: dict[str, str]) -> Path:
    """Packs contents, and texts of the metadata folder."""
    normalized = name.replace("-", "_")
    info = f"{normalized}-{version}.dist-info"
    contents |= {f"{info}/{file}": text.encode() for file, text in texts.items()}
    lines = [f"{file},{_digest(content)},{len(content)}" for file, content in contents.items()]
    build = "0" + hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
    about = f"{_WHEEL}Build: {build}\n".encode()
    contents[f"{info}/WHEEL"] = about
    lines.append(f"{info}/WHEEL,{_digest(about)},{len(about)}")
    contents[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""]).encode()
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{normalized}-{version}-{build}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, content in contents.items():
            entry = zipfile.ZipInfo(file, _MOMENT)
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
