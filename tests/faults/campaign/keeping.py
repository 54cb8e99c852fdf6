"""Keeps the logs and journals of the pods of a run, because a job removes its pods when it ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

_LOOK_SECONDS = 0.2


class Keeper:
    """The logs of one run. `folder` has a folder for each pod, with its log and the final contents of its work folder.

    A master that lost its journal may reuse the names of removed pods; then the log of the later pod is appended.
    """

    def __init__(self, agent: Path, folder: Path) -> None:
        self.folder = folder
        self._agent = agent
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def follow(self, is_over: threading.Event) -> None:
        """Holds on to every log until it learns that the run is over. A link keeps a file whose pod is removed."""
        while not is_over.wait(_LOOK_SECONDS):
            self._link_logs()

    def keep(self) -> None:
        """Takes what is there now, journals included."""
        self._link_logs()
        for name, _, pod in self._pods():
            with contextlib.suppress(shutil.Error, FileNotFoundError):
                shutil.copytree(pod / "work", self.folder / name / "work", dirs_exist_ok=True)
        shutil.copy(self._agent / "agent.log", self.folder)

    def log_of(self, pod: str) -> str:
        """All that the pod has said."""
        return "".join(file.read_text() for file in sorted((self.folder / pod / "log").iterdir()))

    def pods(self) -> list[str]:
        """Every pod that the run had, by name."""
        return sorted(folder.parent.name for folder in self.folder.glob("*/log"))

    def _link_logs(self) -> None:
        for name, made, pod in self._pods():
            folder = self.folder / name / "log"
            folder.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                for file in (pod / "log").iterdir():
                    with contextlib.suppress(FileExistsError, FileNotFoundError):
                        os.link(file, folder / f"{made:020}-{file.name}")

    def _pods(self) -> Iterator[tuple[str, int, Path]]:
        """Name, nanoseconds of its making, and folder of every pod that the agent has."""
        for file in (self._agent / "pods").glob("*/plan.1.json"):
            with contextlib.suppress(FileNotFoundError):
                plan = msgspec.json.decode(file.read_bytes())
                yield plan["environment"]["ELASTREC_POD"], file.stat().st_mtime_ns, file.parent
