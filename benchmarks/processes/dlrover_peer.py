"""DLRover's flash checkpoint of the same bytes: the engine for one rank, with the saver process that it starts.

Runs in an environment with DLRover and PyTorch alone, so nothing of this repository is imported. The code follows
DLRover's guide on flash checkpoint for a model of one rank: `DdpCheckpointer`, `StorageType.MEMORY` and
`StorageType.DISK`, and a restore that copies the result of `load_checkpoint` into the parameters, as `load_state_dict`
does. `wait_latest_checkpoint` polls every three seconds; this module polls the same file more often.

Arguments: FOLDER BYTES. Answers lines of JSON.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

_TABLES, _ROW = 26, 16
_LOOK_SECONDS = 0.002
_MOST_SECONDS = 120.0


class FlashCheckpointer:
    """Tables of one rank, and DLRover's checkpointer for them.

    Args:
        folder: folder on the measured disk.
        size_bytes: size of all tables together.
    """

    def __init__(self, folder: Path, size_bytes: int) -> None:
        import torch
        from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType
        from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer

        self._folder, self._step = folder, 0
        self._memory, self._disk = StorageType.MEMORY, StorageType.DISK
        rows = size_bytes // (4 * _ROW * _TABLES)
        self._tables = {f"table_{number}.weight": torch.rand(rows, _ROW) for number in range(_TABLES)}
        self.bytes = sum(table.nbytes for table in self._tables.values())
        self._source = torch.cat([table.reshape(-1) for table in self._tables.values()]).numpy()
        self._target = self._source.copy()
        self._checkpointer = DdpCheckpointer(str(folder))
        # The first save makes the shared memory.
        self.first = self.memory()

    def _save(self, kind: Any) -> float:
        self._step += 1
        began = time.perf_counter()
        self._checkpointer.save_checkpoint(self._step, dict(self._tables), storage_type=kind)
        seconds = time.perf_counter() - began
        engine = self._checkpointer._engine
        if engine._cached_step != self._step:
            raise RuntimeError(f"DLRover has left out the save of step {self._step}")
        return seconds

    def memory(self) -> dict[str, float]:
        """All tables into memory; training waits all the while."""
        return {"seconds": self._save(self._memory)}

    def disk(self) -> dict[str, float]:
        """Copies all tables to memory and from there to the disk; `seconds` ends when the newest step is reported as
        saved.

        DLRover does not synchronise the file of the tables; `synced_seconds` ends when it is on the disk.
        """
        from dlrover.python.common.constants import CheckpointConstant

        tracker = self._folder / CheckpointConstant.TRACER_FILE_NAME
        began = time.perf_counter()
        blocked = self._save(self._disk)
        while not tracker.exists() or tracker.read_text() != str(self._step):
            if time.perf_counter() - began > _MOST_SECONDS:
                raise RuntimeError(f"DLRover has not written step {self._step} within {_MOST_SECONDS:g} s")
            time.sleep(_LOOK_SECONDS)
        seconds = time.perf_counter() - began
        file = self._folder / str(self._step) / "rank_0.pt"
        descriptor = os.open(file, os.O_RDWR)
        os.fsync(descriptor)
        os.close(descriptor)
        synced = time.perf_counter() - began
        file.unlink()
        return {"seconds": seconds, "blocked_seconds": blocked, "synced_seconds": synced}

    def restore(self) -> dict[str, float]:
        """All tables from memory, into tensors that exist."""
        import torch

        last = self._tables[f"table_{_TABLES - 1}.weight"]
        last[-1].zero_()
        began = time.perf_counter()
        loaded = self._checkpointer.load_checkpoint()
        with torch.no_grad():
            for name, table in self._tables.items():
                table.copy_(loaded[name])
        seconds = time.perf_counter() - began
        if not last[-1].any():
            raise RuntimeError("DLRover has not restored the last row")
        return {"seconds": seconds}

    def memcpy(self) -> dict[str, float]:
        """The tables' bytes from memory to memory."""
        import numpy as np

        began = time.perf_counter()
        np.copyto(self._target, self._source)
        return {"seconds": time.perf_counter() - began}

    def answer(self, request: dict[str, Any]) -> dict[str, float]:
        work: Callable[[], dict[str, float]] = getattr(self, request["do"])
        return work()

    def close(self) -> None:
        """Ends the saver and removes the shared memory."""
        from dlrover.python.common.multi_process import SOCKET_TMP_DIR

        engine = self._checkpointer._engine
        engine.saver_proc.terminate()
        engine.saver_proc.join()
        engine._shm_handler.unlink()
        shutil.rmtree(Path(SOCKET_TMP_DIR) / os.environ["TORCHELASTIC_RUN_ID"])
        with contextlib.suppress(OSError):  # another run has its sockets there
            Path(SOCKET_TMP_DIR).rmdir()


def main(folder: Path, size_bytes: int) -> None:
    # Names of its sockets and of its shared memory: two runs side by side must not share them.
    os.environ["TORCHELASTIC_RUN_ID"] = f"benchmark-{uuid.uuid4().hex[:8]}"
    logging.disable(logging.WARNING)
    answers = sys.stdout
    # DLRover's log goes there.
    sys.stdout = sys.stderr
    checkpointer = FlashCheckpointer(folder, size_bytes)
    try:
        hello = {
            "bytes": checkpointer.bytes, "first": checkpointer.first, "dlrover": version("dlrover"),
            "torch": version("torch"),
        }  # fmt: skip
        print(json.dumps(hello), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps(checkpointer.answer(json.loads(line))), file=answers, flush=True)
    finally:
        checkpointer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
