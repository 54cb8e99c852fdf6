"""Source: where a worker's minibatches come from, whatever kind of stream they are a part of.

A kind of stream has a type of its own in `specs.splits`, which `open_source` knows, and a Source that reads it. What a
split is and in which order splits are handed out is the master's; how one is read is known here alone.
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
        """Minibatches of a split from a place on that an earlier minibatch of it named, perhaps to another process.

        The same rows come in the same order in every process. The last minibatch, and no other, ends the split; it
        has no rows where none are left.

        Args:
            offset: rows that are left out; 0 with an empty position: none.
            position: of the minibatch whose `end_offset` is `offset`.
            batch_size: rows of a minibatch; the last one may have fewer.

        Raises:
            DataError: a row is bad, or data cannot be read.
        """
        ...

    def close(self) -> None:
        """Lets go of files and connections."""
        ...


class ManifestSource:
    """Row ranges of a data manifest, read in the trainer's own process. Offsets say all, so positions are empty."""

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
    """The source of a stream's minibatches for a job. Reads the manifest, which may be large.

    Raises:
        SpecError, DataError: see the readers; the manifest cannot be read.
    """
    return ManifestSource(reader_of(spec, read_manifest(stream.manifest)))


def reader_of(spec: JobSpec, manifest: DataManifest) -> ShardReader:
    """The reader of a job's rows, deduplicated where the job has groups.

    Raises:
        SpecError, DataError: see the readers.
    """
    if unfitted := unfitted_features(spec.data):
        raise DataError(f"data.features: {unfitted} have steps that are not fitted; prepare the job first")
    hash_sizes = {name: size for name in spec.data.tables if (size := spec.table(name).hash_size)}
    return ShardReader(spec.data, manifest, hash_sizes=hash_sizes, groups=spec.deduplication.groups or ())
