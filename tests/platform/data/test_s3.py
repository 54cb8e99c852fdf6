"""Data and manifests on an S3 store, through pyarrow's file systems."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from elastrec.platform.data.clustering import clustering
from elastrec.platform.data.clustering.clustering import cluster, clustered_data
from elastrec.platform.data.convert import ByRows, convert
from elastrec.platform.data.files import locate
from elastrec.platform.data.generating.generator import GenerateSpec, generate, training_data_for
from elastrec.platform.data.manifest import build_manifest, read_manifest, write_new_manifest
from elastrec.platform.data.partitions import existing_partitions
from elastrec.platform.data.reading.reader import ShardReader
from elastrec.platform.specs.errors import DataError
from tests.platform.data.rows import data, table, write_parquet
from tests.s3 import bucket_at, s3_server


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with s3_server() as endpoint:
        yield bucket_at(endpoint, "clicks", monkeypatch)


def test_a_log_in_a_bucket_is_generated_listed_read_and_converted(bucket: str, tmp_path: Path) -> None:
    local, remote = (
        GenerateSpec(path=path, days=2, rows_per_day=300, dense=2, sparse=3)
        for path in (str(tmp_path / "log"), f"{bucket}/log")
    )
    assert generate(remote).days == generate(local).days
    manifest = build_manifest(training_data_for(remote))
    assert read_manifest(write_new_manifest(manifest, f"{bucket}/manifests/a")) == manifest
    assert manifest.partitions == ["day=2026-01-01", "day=2026-01-02"]
    ours, theirs = (
        list(ShardReader(of, build_manifest(of)).read(0, 600, seed=1, shuffle=True, batch_size=128))
        for of in (training_data_for(remote), training_data_for(local))
    )
    assert ours == theirs
    # What an interrupted conversion has left is written anew.
    for name in ("_unfinished", "day=2026-01-01/part-00009.parquet"):
        boto3.client("s3").put_object(Bucket="clicks", Key=f"converted/{name}", Body=b"stale")
    report = convert(training_data_for(remote), f"{bucket}/converted", layout=ByRows(rows=200))
    assert build_manifest(report.data).rows == 600
    assert convert(training_data_for(remote), f"{bucket}/converted", layout=ByRows(rows=200)) == report


def test_a_partition_in_a_bucket_is_clustered_and_an_interrupted_run_repeated(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = GenerateSpec(path=str(tmp_path / "log"), days=1, rows_per_day=300, dense=2, sparse=3)
    generate(spec)
    data = training_data_for(spec)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(clustering, "write_report", killed)
        cluster(data, f"{bucket}/clustered", row_group_rows=64)
    boto3.client("s3").put_object(Bucket="clicks", Key="clustered/day=2026-01-01/part-00009.parquet", Body=b"stale")
    (report,) = cluster(data, f"{bucket}/clustered", row_group_rows=64)
    assert cluster(data, f"{bucket}/clustered", row_group_rows=64) == [report]
    assert build_manifest(clustered_data(data, f"{bucket}/clustered")).rows == 300
    boto3.client("s3").put_object(Bucket="clicks", Key="mine/day=2026-01-01/note.txt", Body=b"keep")
    with pytest.raises(DataError, match="not clustered"):
        cluster(data, f"{bucket}/mine")


def test_files_of_one_bucket_share_one_file_system_until_the_endpoint_changes(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, path = locate(f"{bucket}/log/day=2026-01-01/a.parquet")
    second, other = locate(f"{bucket}/log/b c%3A.parquet")
    assert first is second
    assert (path, other) == ("clicks/log/day=2026-01-01/a.parquet", "clicks/log/b c%3A.parquet")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert locate(f"{bucket}/log")[0] is not first
    assert locate(str(tmp_path))[1] == str(tmp_path)


def test_a_log_of_other_keys_and_stray_files_in_a_bucket_is_that_of_a_folder(bucket: str, tmp_path: Path) -> None:
    for index, folder in enumerate(("country=DE/dt=2026-01-01", "country=F%3AR/dt=2026-01-01")):
        file = tmp_path / "log" / folder / "a.parquet"
        write_parquet(file, table(40, index * 40))
        boto3.client("s3").upload_file(str(file), "clicks", f"log/{folder}/a.parquet")
        boto3.client("s3").put_object(Bucket="clicks", Key=f"log/{folder}/README.txt", Body=b"not rows")
    ours, theirs = (
        data(
            path,
            partitioning="day",
            partition_folder="country=*/dt=%Y-%m-%d",
            include=["*.parquet"],
            sparse=[{"name": "row"}, {"name": "country", "encoding": "string"}],
        )
        for path in (f"{bucket}/log", tmp_path / "log")
    )
    assert existing_partitions(ours) == existing_partitions(theirs)
    found, expected = (
        list(ShardReader(of, build_manifest(of)).read(0, 80, seed=1, shuffle=True, batch_size=32))
        for of in (ours, theirs)
    )
    assert found == expected
