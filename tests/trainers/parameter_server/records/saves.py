"""A server that saves through the memory of its node, without a master."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np

from elastrec.checkpoints import PartManifest, commit_record, open_store
from elastrec.platform.transport.messages.directive import SaveOrder
from elastrec.platform.transport.messages.job import SavedPart
from elastrec.trainers.parameter_server.records.memory import RecordMemory
from elastrec.trainers.parameter_server.records.saver import Saver
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from tests.trainers.parameter_server.calls import SGD, pull, push, server_of
from tests.trainers.parameter_server.running import training_job

IDS = list(range(50))
JOB_ID = "clicks-1"


def trained() -> ParameterServer:
    """A server with rows that were pushed to."""
    server = server_of()
    pull(server, "a", IDS)
    push(server, "a", 0, IDS, 1.0)
    return server


class Saves:
    """A server, its saver, and the reports of the saver.

    Args:
        store: URI of the checkpoint store.
        server: a server to use instead of `trained`.
    """

    def __init__(self, store: str, memory: RecordMemory, server: ParameterServer | None = None) -> None:
        self.store, self.memory = store, memory
        open_store(store).create()
        self.server = server or trained()
        self.server.spec = self.server.spec.model_copy(
            update={"checkpoint": self.server.spec.checkpoint.model_copy(update={"deltas": 5})}
        )
        self.parts: dict[str, SavedPart] = {}
        self.changed = threading.Condition()
        self.copied: list[str] = []
        self.saver = Saver(
            self.server, lambda order_id: None, self._report, lambda error: None, self.copied.append, memory
        )

    def _report(self, part: SavedPart) -> None:
        with self.changed:
            self.parts[part.order_id] = part
            self.changed.notify_all()

    def uri(self, name: str) -> str:
        return f"{self.store}/clicks/records/{name}"

    def begin(self, name: str, base: str = "") -> None:
        self.saver.begin(SaveOrder(name, self.uri(name), base))

    def reported(self, name: str) -> SavedPart:
        """What the server says of its part, once it does."""
        with self.changed:
            assert self.changed.wait_for(lambda: name in self.parts, 120)
        return self.parts[name]

    def save(self, name: str, base: str = "") -> SavedPart:
        self.begin(name, base)
        return self.reported(name)

    def commit(self, name: str, base: str = "") -> PartManifest:
        """A complete record of a save; returns its part."""
        part = PartManifest.from_json(self.save(name, base).manifest_json)
        commit_record(
            self.uri(name), [part], b"{}", job=training_job(optimizers=SGD), job_id=JOB_ID, kind="periodic", step=1,
            generation=1, base=base and self.uri(base),
        )  # fmt: skip
        assert open_store(self.uri(name)).size(part.file) == part.size_bytes, "reported before it was durable"
        return part

    def file(self, name: str, part: PartManifest) -> Path:
        """Of a part, in a store that is a folder."""
        path = open_store(self.uri(name)).local_path(part.file)
        assert path is not None
        return path


def rows(server: ParameterServer) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.array(pull(server, "a", IDS)[1][0])
