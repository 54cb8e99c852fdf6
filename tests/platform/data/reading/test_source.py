"""Sources: the begin, end and continuation of the splits of a stream."""

from __future__ import annotations

from pathlib import Path

from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.reading.reader import ShardReader
from elastrec.platform.data.reading.source import ManifestSource
from tests.platform.data.rows import data, table, write_parquet
from tests.splits import row_shard


def test_minibatches_know_where_they_end_in_their_split_and_which_one_ends_it(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", table(100))
    of = data(tmp_path)
    source = ManifestSource(ShardReader(of, build_manifest(of)))
    split = row_shard(3, 20, 70, seed=5, shuffle=True).split
    whole = list(source.read(split, 0, b"", 32))
    assert [(each.end_offset, each.ends_split) for each in whole] == [(32, False), (64, False), (70, True)]
    assert list(source.read(split, 32, b"", 32)) == whole[1:]
    source.close()
