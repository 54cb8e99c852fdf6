"""Source: the interface through which a worker reads the splits of a stream.

Each kind of stream has a type in `specs.splits` and a Source. The master cuts streams into splits and decides their
order; only their Source knows how they are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from elastrec.platform.data.entries import DataManifest
from elastrec.platform.data.features.fitting import unfitted_features
from elastrec.platform.data.manifest import read_manifest
from elastrec.platform.data.reading.batches import Minibatch
from elastrec.platform.data.reading.reader import ShardReader
from elastrec.platform.specs.errors import DataError
from elastrec.platform.specs.job import JobSpec
from elastrec.platform.specs.splits import ManifestStream, Split


class Source(Protocol):
    """Reads the splits of one stream; used by one thread at a time."""

    def read(self, split: Split, offset: int, position: bytes, batch_size: int) -> Iterator[Minibatch]:
        """Minibatches of a split after an earlier minibatch, which another process may have read.

        Every process reads the same rows in the same order. Only the last minibatch ends the split; it may have no
        rows.

        Args:
            offset: number of rows to skip.
            position: of the minibatch whose `end_offset` is `offset`; empty with offset 0.
            batch_size: rows of a minibatch; the last one may have fewer.

        Raises:
            DataError: a row is bad, or data cannot be read.
        """
        ...

    def close(self) -> None:
        """Closes files and connections."""
        ...


class ManifestSource:
    """Row ranges of a data manifest, read in the worker's process. Offsets are enough, so that positions are empty."""

    def __init__(self, reader: ShardReader) -> None:
        self.reader = reader

    def read(self, split: Split, offset: int, position: bytes, batch_size: int) -> Iterator[Minibatch]:
        rows = split.range
        yield from self.reader.minibatches(
            rows.start, rows.length, seed=rows.seed, shuffle=rows.shuffle, offset=offset, batch_size=batch_size
        )

    def close(self) -> None:
        self.reader.close()


def open_source(stream: ManifestStream, spec: JobSpec) -> Source:
    """The source of a stream for a job. Reads the manifest, which may be large.

    Raises:
        SpecError, DataError: see `ShardReader`; or the manifest cannot be read.
    """
    return ManifestSource(reader_of(spec, read_manifest(stream.manifest)))


def reader_of(spec: JobSpec, manifest: DataManifest) -> ShardReader:
    """The reader of a job's rows.

    Raises:
        SpecError, DataError: see `ShardReader`; or steps of features are not fitted.
    """
    if unfitted := unfitted_features(spec.data):
        raise DataError(f"data.features: {unfitted} have steps that are not fitted; prepare the job first")
    hash_sizes = {name: size for name in spec.data.tables if (size := spec.table(name).hash_size)}
    return ShardReader(spec.data, manifest, hash_sizes=hash_sizes, groups=spec.deduplication.groups or ())
