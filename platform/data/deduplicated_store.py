"""Deduplicated batches at rest: an Arrow stream per file, zstd, shown under its name when it is complete.

Parquet has no word for a dictionary of lists, an Arrow stream has: each batch brings its distinct rows along. Reading
gives the batches as they were written, nothing is searched again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.fs as pafs

from elastrec.platform.data.files import locate
from elastrec.platform.data.writers import AtomicFile
from elastrec.platform.specs.errors import DataError


def store_batches(uri: str, batches: Iterable[pa.RecordBatch]) -> int:
    """Write batches of one schema; the size of the file in bytes.

    Raises:
        DataError: there is no batch, one has another schema than the first, or the place cannot be written.
    """
    source = iter(batches)
    first = next(source, None)
    if first is None:
        raise DataError(f"{uri}: no batch is not allowed; allowed: one or more")
    file = AtomicFile(uri)
    try:
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(file.stream, first.schema, options=options) as writer:
            writer.write_batch(first)
            for index, batch in enumerate(source, 1):
                if not batch.schema.equals(first.schema, check_metadata=True):
                    raise DataError(
                        f"{uri}: batch {index} has the columns {batch.schema.names}; allowed: those of the first, "
                        f"{first.schema.names}, with the same types and groups"
                    )
                writer.write_batch(batch)
    except BaseException:
        file.discard()
        raise
    return file.commit()


def stored_batches(uri: str) -> Iterator[pa.RecordBatch]:
    """The batches of a file, in order, one in memory at a time.

    Raises:
        DataError: the file cannot be read or was cut off.
    """
    filesystem, path = locate(uri)
    try:
        with filesystem.open_input_file(path) as stream, pa.ipc.open_stream(stream) as reader:
            size = stream.size()
            yield from reader
            # A stream that was cut off between two batches reads like one that is complete.
            if stream.tell() != size or not _ends_properly(filesystem, path, size):
                raise DataError(f"{uri}: was cut off; write it again")
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{uri}: is no readable Arrow stream ({error}); write it again") from error


def _ends_properly(filesystem: pafs.FileSystem, path: str, size: int) -> bool:
    """Whether the file ends with the end-of-stream mark of the Arrow format."""
    with filesystem.open_input_file(path) as stream:
        return size >= 8 and stream.read_at(8, size - 8) == b"\xff\xff\xff\xff\x00\x00\x00\x00"
