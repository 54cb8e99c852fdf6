"""What one attempt of an ApplicationMaster leaves to the next: YARN knows containers, not pods.

A file of lines in the staging folder, each a pod as it was known then. A pod's line is on disk before YARN hears of its
request, and the line of its end before YARN learns that its end was heard.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from elastrec.platform.clusters.pods import PodStatus


class Line(msgspec.Struct, frozen=True):
    """One pod.

    Attributes:
        container: its id; empty: none was granted yet.
        is_deleted: there is no such pod any more.
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
