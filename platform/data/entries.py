"""The entries of a data manifest: files with consecutively numbered rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from elastrec.platform.data.reading.files.text import TextLayout
from elastrec.platform.specs.errors import DataError

MANIFEST_VERSION = 1


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file.

    Attributes:
        uri: absolute local path or URI.
        partition: `day=2026-01-31`, or empty.
        bytes: size of the file.
        modified_ns: time of the last modification, in nanoseconds since the epoch; None if the file system does not
            give it.
        row_group_rows: rows of each row group (Parquet).
        keys: values of the Hive keys in the names of its folders, for columns that are not in the file; None: empty.
        deduplicated: groups of features whose distinct rows are stored once in the file (Parquet).
        text: layout and row offsets (text files).
    """

    uri: str
    partition: str
    rows: int
    bytes: int
    modified_ns: int | None = None
    keys: dict[str, str | None] = {}
    row_group_rows: list[int] = []
    deduplicated: tuple[tuple[str, ...], ...] = ()
    text: TextLayout | None = None


class DataManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Ordered files whose rows are numbered from 0.

    Attributes:
        digest: xxh3-128 over the files' names, sizes, modification times and row counts.
        schema_fingerprint: xxh3-64 over the columns that the job reads, their encodings and types.
        partitions: those covered, oldest first; empty for unpartitioned data.
    """

    version: int = MANIFEST_VERSION
    files: list[DataFile]
    rows: int
    bytes: int
    digest: str
    schema_fingerprint: str
    partitions: list[str]

    def locate_rows(self, start: int, length: int) -> list[tuple[DataFile, int, int]]:
        """(file, first row in the file, number of rows) of a range of the manifest's rows, in order.

        Raises:
            DataError: the range is empty or exceeds the manifest.
        """
        if start < 0 or length < 1 or start + length > self.rows:
            raise DataError(f"rows {start} to {start + length} are outside the manifest's {self.rows} rows")
        found = overlaps((file.rows for file in self.files), start, length)
        return [(self.files[index], low - begin, high - low) for index, begin, low, high in found]


def overlaps(sizes: Iterable[int], start: int, length: int) -> Iterator[tuple[int, int, int, int]]:
    """Parts, one after the other, with rows of a range: (number, first row of the part, first and end of the range's
    rows in it)."""
    begin, stop = 0, start + length
    for index, size in enumerate(sizes):
        end = begin + size
        if size and start < end:
            yield index, begin, max(start, begin), min(stop, end)
        if end >= stop:
            return
        begin = end
