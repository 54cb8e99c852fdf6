"""Builds etcd, the API server, the controller manager and the scheduler from their Go modules, once per version.

The programs are in the user's cache folder (`XDG_CACHE_HOME`), in a folder named after their sources: the module files
beside this one, the flags here, and the Go version. A first build takes about ten minutes of one core, 2 GB of memory
and 4 GB of disk for Go's own caches; the programs themselves take 240 MB.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
_MODULE = Path(__file__).with_name("go.mod")
_SUMS = Path(__file__).with_name("go.sum")
_BUILD_SECONDS = 3600.0
_VERSION_PACKAGE = "k8s.io/component-base/version"
_FLAGS = ("-mod=readonly", "-buildvcs=false", "-trimpath", "-tags=grpcnotrace")
_PACKAGE_OF = {"etcd": "server"}
"""Names of programs in `go build` that differ from the names of their packages."""


class BuildError(Exception):
    """The programs cannot be built here; the message names what is missing, or is that of Go."""


def programs() -> Path | None:
    """The folder of the built programs; None: they are not built, or were built from other sources."""
    folder = _folder()
    return folder if folder is not None and folder.is_dir() else None


def build(processes: int | None = None) -> Path:
    """The folder of the programs, which are built if they are missing.

    Args:
        processes: maximum of compilers at once, each of which needs up to 1 GB. None: the number of cores.

    Raises:
        BuildError: Go is not installed, or it failed; contains its last lines.
    """
    folder = _folder()
    if folder is None:
        raise BuildError("go is not installed; Kubernetes' programs need Go 1.26 or above")
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=folder.parent, prefix="building-"))
    try:
        for file in (_MODULE, _SUMS):
            shutil.copy(file, staging)
        _run_go(staging, processes)
        for name in PROGRAMS:
            (staging / "bin" / _PACKAGE_OF.get(name, name)).rename(staging / "bin" / name)
        if not folder.is_dir():  # another process may have been quicker
            (staging / "bin").rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder


def _run_go(staging: Path, processes: int | None) -> None:
    # A server without a version answers clients with v0.0.0, which they refuse.
    version = _kubernetes_version()
    major, minor, _ = version.removeprefix("v").split(".")
    stamps = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    linker = " ".join(["-s", "-w", *(f"-X {_VERSION_PACKAGE}.{name}={value}" for name, value in stamps.items())])
    at_once = ["-p", str(processes)] if processes else []
    command = ["go", "build", *_FLAGS, *at_once, "-o", "bin/", "-ldflags", linker, "tool"]
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}
    if processes:
        environment["GOMAXPROCS"] = str(processes)
    try:
        done = subprocess.run(
            command, cwd=staging, env=environment, capture_output=True, text=True, timeout=_BUILD_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise BuildError(f"go did not build the programs within {_BUILD_SECONDS:.0f} s") from None
    if done.returncode:
        raise BuildError(f"go build failed with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")


def _kubernetes_version() -> str:
    found = re.search(r"^\s*k8s\.io/kubernetes (v[\d.]+)$", _MODULE.read_text(), re.MULTILINE)
    if found is None:
        raise BuildError(f"{_MODULE}: requires no k8s.io/kubernetes")
    return found[1]


def _folder() -> Path | None:
    if shutil.which("go") is None:
        return None
    version = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout
    digest = hashlib.sha256(version.encode())
    for file in (_MODULE, _SUMS, Path(__file__)):
        digest.update(file.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "elastrec" / f"kubernetes-{digest.hexdigest()[:12]}"
