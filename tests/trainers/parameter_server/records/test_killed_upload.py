"""The process that copies a part to S3 is killed in the middle of its multipart upload."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from moto.s3.models import S3Backend

from elastrec.checkpoints import list_records, new_record_uri, open_store, prune
from elastrec.checkpoints.stores.s3_store import UPLOAD_PART_BYTES
from elastrec.trainers.parameter_server.messages import Parameter
from elastrec.trainers.parameter_server.records.memory import RecordMemory
from elastrec.trainers.parameter_server.records.share import restore
from tests.s3 import s3_server, store_at
from tests.trainers.parameter_server.calls import pull, server_of
from tests.trainers.parameter_server.records.saves import IDS, JOB_ID, Saves, rows
from tests.trainers.parameter_server.running import routing_of

pytestmark = pytest.mark.services

DENSE_BYTES = 5 * UPLOAD_PART_BYTES // 2
"""So that a part is uploaded in three pieces."""


class Gate:
    """Holds the second piece of every upload at the S3 server while it is shut."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_open, self.reached, self.has_first = threading.Event(), threading.Event(), threading.Event()
        self.is_open.set()
        upload_part = S3Backend.upload_part

        def held(backend: S3Backend, bucket: str, upload: str, part_id: int, value: bytes) -> Any:
            if part_id == 2 and not self.is_open.is_set():
                self.reached.set()
                assert self.is_open.wait(120)
            stored = upload_part(backend, bucket, upload, part_id, value)
            if part_id == 1:
                self.has_first.set()
            return stored

        monkeypatch.setattr(S3Backend, "upload_part", held)

    def shut(self) -> None:
        self.has_first.clear()
        self.is_open.clear()


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    path = tmp_path / "volume"
    with path.open("xb") as file:
        os.posix_fallocate(file.fileno(), 0, 4 * DENSE_BYTES)
    return path


def test_a_process_killed_in_an_upload_leaves_the_record_before_and_the_next_record_ends_the_upload(
    memory: RecordMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server() as endpoint:
        store = store_at(endpoint, "killed-upload", monkeypatch)
        gate, server = Gate(monkeypatch), server_of(layout=[Parameter("w", (DENSE_BYTES // 4,))])
        pull(server, "a", IDS)
        saves = Saves(store, memory, server)
        before, killed, after = (
            new_record_uri(open_store(store), "clicks", JOB_ID, step).rpartition("/")[2] for step in (1, 2, 3)
        )
        saves.commit(before)
        saved = rows(server)
        pull(server, "a", [1000])

        gate.shut()
        saves.begin(killed)
        assert gate.reached.wait(120) and gate.has_first.wait(60)
        assert memory._flusher is not None and memory._flusher._process is not None
        memory._flusher._process.kill()
        assert "has ended (-9)" in saves.reported(killed).problem
        gate.is_open.set()

        # Half a part is nobody's record.
        assert [uri for uri, _ in list_records(store, "clicks")] == [saves.uri(before)]
        assert open_store(saves.uri(killed)).keys() == []
        (left,) = open_store(store).unfinished("clicks/records")
        assert killed in left
        restore(server, saves.uri(before), routing_of(["here:1"]), 1)
        np.testing.assert_array_equal(rows(server), saved)

        # As the master does after every record.
        saves.commit(after)
        assert prune(store, "clicks", JOB_ID, keep=2) == [saves.uri(killed)]
        assert open_store(store).unfinished("clicks/records") == []
        assert [uri for uri, _ in list_records(store, "clicks")] == [saves.uri(after), saves.uri(before)]
