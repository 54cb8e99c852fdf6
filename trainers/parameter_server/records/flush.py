"""`python -m elastrec.trainers.parameter_server.records.flush MEMORY`: copies parts from memory to their store.

It executes its parent's requests with low priority, and ends with its parent.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

import msgspec
import xxhash

from elastrec.checkpoints import StoreError, expect_existing_stores, open_store
from elastrec.checkpoints.flash import HeldPart, PartMemory
from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.transport.logs import configure_logging
from elastrec.trainers.parameter_server.records.flusher import FlushOrder, FlushReport

_NICENESS = 10
"""Requests of a server that uses all of its cores come first, but the part must become durable, too: beside two busy
threads on a tenth of a core, 200 MB took 10 s with this value, and more than a minute with 19.
"""
_WRITE_BYTES = 8 * 2**20
_SET_PARENT_DEATH_SIGNAL = 1


def copy_part(memory: PartMemory, part: HeldPart) -> None:
    """Writes a part into its record's folder; reports its progress on standard output.

    Raises:
        CheckpointError: the memory contains another part, the bytes are damaged, or the store refused.
    """
    checksum = xxhash.xxh3_64()
    with open_store(part.uri).open_write(part.file) as writer:
        for start in range(0, part.size_bytes, _WRITE_BYTES):
            data = memory.read(part, start, min(_WRITE_BYTES, part.size_bytes - start))
            if data is None:
                raise CheckpointError(f"{part.uri}/{part.file}: the memory holds another part by now")
            checksum.update(data)
            writer.write(data)
            _say(FlushReport(written_bytes=start + len(data)))
        if checksum.intdigest() != part.checksum:
            raise CheckpointError(f"{part.uri}/{part.file}: the copy in memory is damaged (checksum differs)")


def _say(report: FlushReport) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


def main() -> int:
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    os.nice(_NICENESS)
    configure_logging()
    expect_existing_stores()
    memory = PartMemory(Path(sys.argv[1]), writes=False)
    for line in sys.stdin.buffer:
        part = msgspec.json.decode(line, type=FlushOrder).part
        try:
            copy_part(memory, part)
        except (CheckpointError, OSError) as error:
            _say(FlushReport(problem=f"{type(error).__name__}: {error}", store_away=isinstance(error, StoreError)))
        else:
            _say(FlushReport(written_bytes=part.size_bytes, is_done=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
