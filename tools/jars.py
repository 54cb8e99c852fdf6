"""Java servers' jars from Maven Central: fetched once into the user's cache folder, named after the dependency file."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

_FETCH_SECONDS = 300.0
JVM = (
    "java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
    "-Djava.net.preferIPv4Stack=true",
    "--add-opens=java.base/java.lang=ALL-UNNAMED", "--add-opens=java.base/java.util=ALL-UNNAMED",
)  # fmt: skip
"""Options for starting a Hadoop daemon with little memory."""


class JarsError(Exception):
    """Maven failed to fetch the jars; contains its last lines."""


class Jars:
    """The jars in a `pom.xml`, with their dependencies at run time.

    Args:
        name: first part of the cache folder's name.
    """

    def __init__(self, name: str, pom: Path) -> None:
        self._pom = pom
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self.folder = cache / "elastrec" / f"{name}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"

    @property
    def are_here(self) -> bool:
        """Whether they were fetched before."""
        return self.folder.is_dir()

    def missing_program(self) -> str:
        """The missing program, `java` or `mvn`; empty if the jars can be fetched and run."""
        programs = ["java"] if self.are_here else ["java", "mvn"]
        return next((name for name in programs if shutil.which(name) is None), "")

    def fetch(self) -> Path:
        """The folder of the jars; Maven fetches them if they are missing.

        Raises:
            JarsError: Maven failed.
        """
        if self.are_here:
            return self.folder
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(dir=self.folder.parent, prefix="fetching-"))
        try:
            shutil.copy(self._pom, staging / "pom.xml")
            command = [
                "mvn", "-q", "-B", "-f", str(staging / "pom.xml"), "dependency:copy-dependencies",
                "-DincludeScope=runtime", f"-DoutputDirectory={staging / 'jars'}",
            ]  # fmt: skip
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_SECONDS)
            except subprocess.TimeoutExpired:
                raise JarsError(f"mvn did not fetch the jars within {_FETCH_SECONDS:.0f} s") from None
            if done.returncode:
                raise JarsError(f"mvn failed with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
            if not self.are_here:  # another process may have been quicker
                (staging / "jars").rename(self.folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return self.folder
