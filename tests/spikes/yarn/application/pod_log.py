"""The log of pods that one attempt of an ApplicationMaster leaves to the next, because YARN only knows containers.

A file in the staging folder, with one line for each state of a pod. The line of a pod is on disk before its request is
sent to YARN, and the line of its end before the end is acknowledged to YARN.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from elastrec.platform.clusters.pods import PodStatus


class Line(msgspec.Struct, frozen=True):
    """One pod.

    Attributes:
        container: id of its container; empty: none was granted yet.
        is_deleted: whether the pod was deleted.
    """

    pod: PodStatus
    container: str = ""
    is_deleted: bool = False


class PodLog:
    """Of one application; not safe for several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, Line]:
        """The last line of each pod that is not deleted, by uid."""
        lines: dict[str, Line] = {}
        if self._path.exists():
            for text in self._path.read_bytes().splitlines():
                try:
                    line = msgspec.json.decode(text, type=Line)
                except msgspec.DecodeError:
                    break  # the attempt before ended while it wrote its last line
                lines[line.pod.uid] = line
        return {uid: line for uid, line in lines.items() if not line.is_deleted}

    def write(self, line: Line) -> None:
        """Returns when it is on disk."""
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
            file.flush()
            os.fsync(file.fileno())
