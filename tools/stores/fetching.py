"""Programs of the servers, fetched once into the user's cache folder: an npm package, Go programs, Hadoop's jars."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from tools.jars import Jars

AZURITE, FAKE_GCS, VERSITY = "3.35.0", "v1.56.1", "v1.8.0"
JARS = Jars("hdfs", Path(__file__).with_name("pom.xml"))
_FETCH_SECONDS = 600.0


class FetchError(Exception):
    """A program could not be fetched; contains its name and the last lines of its installer."""


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elastrec"


def azurite() -> Path:
    """The path of Azurite's blob server after it was fetched."""
    return _cache() / f"azurite-{AZURITE}" / "node_modules/.bin/azurite-blob"


def fake_gcs() -> Path:
    """The path of fake-gcs-server after it was fetched."""
    return _cache() / f"fake-gcs-server-{FAKE_GCS}" / "fake-gcs-server"


def versity() -> Path:
    """The path of Versity's S3 gateway after it was fetched."""
    return _cache() / f"versitygw-{VERSITY}" / "versitygw"


def missing(server: str) -> str:
    """The missing requirements of a server, as a sentence; empty if it can be started.

    Args:
        server: `azure`, `gcs`, `hdfs` or `s3`.
    """
    here = {
        "azure": azurite().exists(), "gcs": fake_gcs().exists(), "hdfs": JARS.are_here, "s3": versity().exists(),
    }[server]  # fmt: skip
    return "" if here else f"the {server} server is not here: `python -m tools.stores fetch`"


def fetch() -> None:
    """Fetches missing programs.

    Raises:
        FetchError, JarsError: npm, Go or Maven failed, or is not installed.
    """
    JARS.fetch()
    _once(azurite().parents[2], lambda folder: _run("npm", "install", "--silent", "--prefix", str(folder),
                                                    f"azurite@{AZURITE}"))  # fmt: skip
    _fetch_go(fake_gcs(), f"github.com/fsouza/fake-gcs-server@{FAKE_GCS}")
    fetch_versity()


def fetch_versity() -> None:
    """Builds the S3 gateway, unless it exists.

    Raises:
        FetchError: Go failed, or is not installed.
    """
    _fetch_go(versity(), f"github.com/versity/versitygw/cmd/versitygw@{VERSITY}")


def _fetch_go(program: Path, source: str) -> None:
    _once(program.parent, lambda folder: _run("go", "install", source, environment={"GOBIN": str(folder)}))


def _once(folder: Path, install: Callable[[Path], None]) -> None:
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=folder.parent, prefix="fetching-"))
    try:
        install(staging)
        if not folder.is_dir():  # another process may have been quicker
            staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _run(*command: str, environment: Mapping[str, str] | None = None) -> None:
    if shutil.which(command[0]) is None:
        raise FetchError(f"{command[0]} is not installed; it fetches {command[-1]}")
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_FETCH_SECONDS, env={**os.environ, **(environment or {})}
    )
    if done.returncode:
        raise FetchError(f"{command[0]} failed with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
