"""A network of its own for one process: a namespace with a virtual cable to this one, which can be disconnected. Needs
root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Cable:
    """Two ends of a virtual cable.

    Attributes:
        namespace: contains the far end; `inside` runs commands in it.
        near, far: addresses of the two ends.
        device: name of the near end.
    """

    namespace: str
    near: str
    far: str
    device: str

    def inside(self, *command: str) -> list[str]:
        """A command that runs in the namespace."""
        return ["ip", "netns", "exec", self.namespace, *command]

    @contextlib.contextmanager
    def pulled(self) -> Iterator[None]:
        """Nothing passes, in neither direction: no reset and no error, as with a cable that is pulled out."""
        # The far end: with the near end down this side's kernel would know, and refuse at once.
        _run(self.inside("ip", "link", "set", "far", "down"))
        try:
            yield
        finally:
            _run(self.inside("ip", "link", "set", "far", "up"))


@contextlib.contextmanager
def cable(network: str = "10.213.77") -> Iterator[Cable]:
    """A namespace with one cable to this one; both are removed at the end.

    Args:
        network: the first three numbers of the addresses.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("left out: network namespaces need root and the command ip (apt-get install iproute2)")
    mark = uuid.uuid4().hex[:8]
    made = Cable(f"elastrec-{mark}", f"{network}.1", f"{network}.2", f"near-{mark}")
    try:
        _run(["ip", "netns", "add", made.namespace])
    except subprocess.CalledProcessError as error:
        pytest.skip(f"left out: no network namespace can be made here: {error.stderr.strip()}")
    try:
        _run(
            ["ip", "link", "add", made.device, "type", "veth", "peer", "name", "far", "netns", made.namespace],
        )
        _run(["ip", "address", "add", f"{made.near}/30", "dev", made.device])
        _run(["ip", "link", "set", made.device, "up"])
        _run(made.inside("ip", "address", "add", f"{made.far}/30", "dev", "far"))
        for device in ("lo", "far"):
            _run(made.inside("ip", "link", "set", device, "up"))
        yield made
    finally:
        # The cable goes with its far end.
        subprocess.run(["ip", "netns", "delete", made.namespace], check=True, capture_output=True)


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
