"""sorted_by_spark: a partition's rows in the order of `sorted_by_session`, sorted by a Spark cluster.

For partitions that exceed one machine's disks. Spark sorts by range and writes the ranges, in its own order, to a
scratch folder that it shares with this process. They are read one after the other and returned as by the local sort, so
that the written files are identical. `pyspark` is an extra: `pip install 'elastrec[spark]'`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from elastrec.platform.data.clustering.sorting import ClusterKeys, SortSource, as_schema, range_count
from elastrec.platform.data.files import list_files, locate
from elastrec.platform.data.finished import Progress
from elastrec.platform.specs.errors import DataError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILE, _ROW = "__elastrec_source_file", "__elastrec_source_row"
_SLASHES = "^([A-Za-z0-9+.-]+):/+"
"""Spark writes the URI of a file sometimes with `file:/` and sometimes with `file:///`."""
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Spark has no type for nanoseconds; as numbers they keep all digits.
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    # Otherwise Spark may merge small ranges, and a file would not be a range.
    "spark.sql.adaptive.enabled": "false",
}


def sorted_by_spark(
    source: SortSource,
    keys: ClusterKeys,
    scratch: str,
    *,
    master: str = "",
    memory_bytes: int,
    progress: Progress | None = None,
) -> Iterator[pa.Table]:
    """All rows in order; no session lies in two tables. Rows without a session come last.

    Args:
        scratch: a folder that does not exist yet, within reach of this process and of all executors; removed at the
            end.
        master: Spark's address, such as `spark://host:7077`; empty: that of the environment, or else this machine.
        memory_bytes: for decoded rows of one range in this process.

    Raises:
        DataError: pyspark is not installed, Spark cannot read a file or failed, or does not support a column's type.
    """
    with _session(master) as spark:
        try:
            _sort(spark, source, keys, scratch, range_count(source, memory_bytes))
            done = 0
            for uri, _ in list_files(scratch):
                filesystem, path = locate(uri)
                with filesystem.open_input_file(path) as stream:
                    table = pq.read_table(stream)
                done += table.num_rows
                if progress is not None:
                    progress(done, source.rows)
                if table.num_rows:
                    # The files of a range may have schemas that differ in nullability.
                    yield as_schema(table, source.schema).combine_chunks()
            if done != source.rows:
                raise DataError(f"{source.uris[0]}: Spark returned {done} of the partition's {source.rows} rows")
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{scratch}: what Spark sorted cannot be read ({error})") from error
        finally:
            _remove(scratch)


def _sort(spark: SparkSession, source: SortSource, keys: ClusterKeys, scratch: str, ranges: int) -> None:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException
    from pyspark.sql import functions

    try:
        # Files that lack a column, or have it in a smaller type, are read by the schema of all.
        files = spark.read.option("mergeSchema", "true").parquet(*(_hadoop(uri) for uri in source.uris))
        numbers = spark.createDataFrame(
            list(_numbers(files.inputFiles(), source.uris).items()), f"`{_FILE}_uri` string, `{_FILE}` long"
        )
        uri = functions.regexp_replace("_metadata.file_path", _SLASHES, r"$1:/")
        rows = files.select("*", uri.alias(f"{_FILE}_uri"), functions.col("_metadata.row_index").alias(_ROW))
        rows = rows.join(functions.broadcast(numbers), f"{_FILE}_uri").drop(f"{_FILE}_uri")
        order = [functions.col(f"`{name}`").asc_nulls_last() for name in (*keys.names, _FILE, _ROW)]
        ordered = rows.repartitionByRange(ranges, order[0]).sortWithinPartitions(*order).drop(_FILE, _ROW)
        ordered.write.option("compression", "zstd").parquet(_hadoop(scratch))
    except (PySparkException, Py4JJavaError) as error:
        # The first line from py4j names its own failed call, the next one Java's exception.
        reason = next(line for line in str(error).splitlines() if "calling" not in line).lstrip(": ")
        raise DataError(f"{source.uris[0]}: Spark could not sort the files of its partition ({reason})") from error


def _numbers(spark_files: list[str], uris: tuple[str, ...]) -> Mapping[str, int]:
    """Index of each file in `uris`, by Spark's name for it, with one slash after its scheme.

    Raises:
        DataError: Spark has a name for a file that this process does not know.
    """
    plain = {_without_scheme(uri): index for index, uri in enumerate(uris)}
    numbers = {}
    for name in spark_files:
        path = _without_scheme(unquote(name))
        if path not in plain:
            raise DataError(f"{name}: Spark reads it, but it is none of the partition's files, such as {uris[0]}")
        numbers[re.sub(_SLASHES, r"\1:/", name)] = plain[path]
    return numbers


def _without_scheme(uri: str) -> str:
    return "/" + uri.partition(":")[2].lstrip("/") if ":" in uri else uri


def _hadoop(uri: str) -> str:
    """Hadoop calls the file system `s3a` that is `s3` for pyarrow."""
    return f"s3a://{uri.removeprefix('s3://')}" if uri.startswith("s3://") else uri


@contextmanager
def _session(master: str) -> Iterator[SparkSession]:
    """A session with the settings for reproducible files; an existing session is used and stays open."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise DataError(
            f"engine: spark is not available ({error}); allowed: local; or install the extra: pip install "
            "'elastrec[spark]', and a Java runtime"
        ) from error
    existing = SparkSession.getActiveSession()
    builder: Any = SparkSession.builder
    builder = builder.appName("elastrec cluster").config("spark.ui.showConsoleProgress", "false")
    if master:
        builder = builder.master(master)
    spark: SparkSession = existing.newSession() if existing is not None else builder.getOrCreate()
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    try:
        yield spark
    finally:
        if existing is None:
            spark.stop()


def _remove(scratch: str) -> None:
    filesystem, path = locate(scratch)
    if filesystem.get_file_info(path).type is pafs.FileType.Directory:
        filesystem.delete_dir(path)
