"""Manifests: lists of the files and rows of a job's data, made and checked before the job starts.

Rows are numbered over the files in the manifest's order; a shard is a contiguous range of these numbers. All pods of a
job read the same manifest.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs
import xxhash

from elastrec.platform.data.deduplicating.stored_groups import plain_schema, stored_groups
from elastrec.platform.data.entries import MANIFEST_VERSION, DataFile, DataManifest
from elastrec.platform.data.files import errors_naming, join, list_files, opened_parquet, read_bytes, write_bytes
from elastrec.platform.data.partitions import Partition, chosen_folders, existing_partitions, folder_keys
from elastrec.platform.data.reading.encode import RowEncoder
from elastrec.platform.data.reading.files.compressed_text import codec_of
from elastrec.platform.data.reading.files.text import scan_text
from elastrec.platform.data.reading.numbers import schema_without_views
from elastrec.platform.data.reading.raw import RawReader
from elastrec.platform.specs.data import FileFormat, TrainingData
from elastrec.platform.specs.errors import DataError, NoRowsError
from elastrec.platform.specs.text.decoders import json_decoder
from elastrec.platform.specs.text.some import repeated

_FILES_AT_ONCE = 4
_TRIED_ROWS = 1_000
_decoder = json_decoder(DataManifest)

Columns = list[tuple[str, str]]
"""Names and types of a file's columns that the job reads."""


def build_manifest(
    data: TrainingData,
    partitions: Sequence[Partition] | None = None,
    *,
    try_rows: bool = True,
    allow_compressed_text: bool = False,
) -> DataManifest:
    """Lists and checks all files of the partitions (default: all that exist), and counts their rows.

    A file without rows, as Spark writes one for an empty task, is left out if its partition has rows in other files.
    The types of columns are checked in every file. In addition, the first rows of every text file and of the first
    Parquet file are encoded (after the user's transform), so that a wrong encoding is found before the job starts.

    Args:
        try_rows: whether to encode first rows.
        allow_compressed_text: for a caller that reads each file once and in order, unlike jobs, which read shards in
            any order.

    Raises:
        NoRowsError: a partition is missing or has no rows, or a file is empty, as one is that is still being written.
        DataError: a file is broken, or a column is missing or has the wrong type; the message names file, column, what
            was found and what was expected.
    """
    roots = [(partition, root) for partition, folders in chosen_folders(data, partitions) for root in folders]
    listed = []
    for partition, root in roots:
        try:
            files = list_files(root, data.include)
        except DataError as error:
            if not partition:
                raise
            names = [existing.folder for existing in existing_partitions(data)]
            available = f"from {names[0]} to {names[-1]} ({len(names)})" if names else "none"
            raise NoRowsError(
                f"{data.path}: the partition {partition} is missing ({root}); partitions there: {available}"
            ) from error
        if partition and [uri for uri, _ in files] == [root]:
            raise DataError(f"{root}: is a file; a partition is a folder of {data.format} files")
        if not files:
            raise _no_files(data, root)
        listed += [(partition, uri, info) for uri, info in files]

    describe = partial(_describe, data, allow_compressed_text=allow_compressed_text)
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        described = _with_rows(list(pool.map(describe, *zip(*listed, strict=True))))
    _check_kinds(described)
    digest = xxhash.xxh3_128()
    root_uri = join(data.path)
    for file, _ in described:
        name = file.uri[len(root_uri) :].lstrip("/") or file.uri.rsplit("/", 1)[-1]
        digest.update(f"{name}\0{file.bytes}\0{file.modified_ns}\0{file.rows}\n".encode())
    manifest = DataManifest(
        files=[file for file, _ in described],
        rows=sum(file.rows for file, _ in described),
        bytes=sum(file.bytes for file, _ in described),
        digest=digest.hexdigest(),
        schema_fingerprint=_fingerprint(data, described[0][1]),
        partitions=[*dict.fromkeys(partition for partition, _ in roots if partition)],
    )
    if try_rows:
        _try_rows(data, manifest)
    return manifest


def _with_rows(described: list[tuple[DataFile, Columns]]) -> list[tuple[DataFile, Columns]]:
    """The files that hold rows.

    Raises:
        NoRowsError: no file of a partition holds any.
    """
    full = {file.partition for file, _ in described if file.rows}
    for file, _ in described:
        if file.partition not in full:
            raise NoRowsError(f"{file.uri}: the file holds no rows; remove it or write its rows")
    return [each for each in described if each[0].rows]


def _no_files(data: TrainingData, root: str) -> NoRowsError:
    """The error for a folder without files."""
    if not data.include or not (others := list_files(root)):
        return NoRowsError(f"{root}: the folder holds no files; expected {data.format} files")
    name = others[0][0].rsplit("/", 1)[-1]
    return NoRowsError(
        f"{root}: none of its {len(others)} files, such as {name}, matches data.include {list(data.include)}; "
        "correct the patterns"
    )


def write_new_manifest(manifest: DataManifest, stem: str) -> str:
    """Writes a manifest as JSON, atomically, with a hash of its content in its name, so that it replaces no other.

    Args:
        stem: URI without the hash and the ending.

    Returns:
        The manifest's URI; the same for equal manifests.

    Raises:
        DataError: the file cannot be written.
    """
    content = msgspec.json.encode(manifest)
    uri = f"{stem}-{xxhash.xxh3_128_hexdigest(content)}.json"
    write_bytes(uri, content)
    return uri


def read_manifest(uri: str) -> DataManifest:
    """Reads a manifest.

    Raises:
        DataError: the file is missing, is not a manifest, or has another version.
    """
    try:
        manifest = _decoder.decode(read_bytes(uri))
    except msgspec.MsgspecError as error:
        raise DataError(f"{uri}: is no data manifest ({error}); build it again") from error
    if manifest.version != MANIFEST_VERSION:
        raise DataError(
            f"{uri}: manifest version {manifest.version} is not known; known: {MANIFEST_VERSION}; build it again"
        )
    return manifest


def _try_rows(data: TrainingData, manifest: DataManifest) -> None:
    """Encodes the first rows of some files.

    Raises:
        DataError: a row is bad and the job does not allow it, or all first rows of a file are bad.
    """
    encoder = RowEncoder(data)
    raw = RawReader(data, manifest, encoder.readings)
    start = 0
    for index, file in enumerate(manifest.files):
        if index == 0 or file.text is not None:
            piece = next(raw.read(start, min(file.rows, _TRIED_ROWS)))
            with errors_naming(file.uri):
                encoded = encoder.encode(piece.table)
            bad = piece.first_bad(encoded)
            if bad is not None and (data.bad_rows.policy == "fail" or encoded.bad_B.all()):
                raise DataError(
                    f"{file.uri}: row {bad.row}, {bad.reason}; correct the column's encoding in the job "
                    "file, fix the file, or allow such rows with data.bad_rows.policy: skip"
                )
        start += file.rows
    raw.close()


def _describe(
    data: TrainingData, partition: str, uri: str, info: pafs.FileInfo, *, allow_compressed_text: bool
) -> tuple[DataFile, Columns]:
    """The entry of one file, and the columns that the job reads."""
    if not info.size:
        raise NoRowsError(f"{uri}: the file is empty; remove it or write its rows")
    content: dict[str, Any]
    types: dict[str, pa.DataType | str]
    if data.format is FileFormat.PARQUET:
        content, types = _parquet_content(uri)
    else:
        if codec_of(uri) and not allow_compressed_text:
            raise DataError(
                f"{uri}: compressed text has no random access; unpack it, or turn it into Parquet with "
                "`elastrec data convert`"
            )
        layout, rows = scan_text(data, uri)
        content, types = {"rows": rows, "text": layout}, dict.fromkeys(layout.columns, "text")
    keys = {key: value for key, value in folder_keys(data, uri).items() if key not in types}
    types |= dict.fromkeys(keys, pa.string() if data.format is FileFormat.PARQUET else "text")
    file = DataFile(
        partition=partition, uri=uri, bytes=info.size, modified_ns=info.mtime_ns, keys=keys, **content
    )  # fmt: skip
    encoder = RowEncoder(data)
    needed = dict.fromkeys(encoder.columns)
    if data.transform is None:
        missing = [name for name in needed if name not in types]
        if missing:
            remedy = "correct the names in the job file's data section"
            if data.format is FileFormat.CSV and data.csv.has_header and len(missing) == len(needed):
                remedy += ", or csv.delimiter, or set csv.has_header: false and csv.column_names if it has no header"
            if data.format is FileFormat.LIBSVM:
                remedy += ": a column is one of these, or the index of a value, such as 7"
            raise DataError(f"{uri}: the columns {missing} are missing; found: {', '.join(types)}; {remedy}")
        if data.format is FileFormat.PARQUET:
            with errors_naming(uri):
                # A table without rows is enough to find a type that does not fit.
                encoder.encode(pa.schema({name: types[name] for name in needed}).empty_table())
    return file, [(name, str(type_)) for name, type_ in types.items() if name in needed]


def _parquet_content(uri: str) -> tuple[dict[str, Any], dict[str, pa.DataType | str]]:
    """Fields of a Parquet file's entry, and the types of its columns."""
    with opened_parquet(uri) as parquet:
        metadata, stored = parquet.metadata, schema_without_views(parquet.schema_arrow)
        groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    duplicates = repeated(stored.names)
    if duplicates:
        raise DataError(
            f"{uri}: the columns {duplicates} are in the file more than once; write the file again, with a name of "
            "its own for every column"
        )
    with errors_naming(uri):
        deduplicated = stored_groups(stored.metadata)
    types = {field.name: field.type for field in plain_schema(stored, deduplicated)}
    return {"rows": metadata.num_rows, "row_group_rows": groups, "deduplicated": deduplicated}, types


def _check_kinds(described: Sequence[tuple[DataFile, Columns]]) -> None:
    """Checks that no column is text in one file and numbers in another, which would give different ids.

    Raises:
        DataError: a column has another kind than in an earlier file.
    """
    first: dict[str, tuple[str, str, str]] = {}
    for file, types in described:
        for column, type_ in types:
            kind = _kind(type_)
            if kind == "null":
                continue
            kind_before, type_before, uri = first.setdefault(column, (kind, type_, file.uri))
            if kind != kind_before:
                raise DataError(
                    f"{file.uri}: column {column!r}: found {type_}, expected {type_before} as in {uri}; "
                    "write one of the files again"
                )


def _kind(type_: str) -> str:
    """`text`, `list`, `null` or `number`, from the name of an Arrow type."""
    if "list" in type_:
        return "list"
    if type_ == "text" or "string" in type_ or "binary" in type_:
        return "text"
    return "null" if type_ == "null" else "number"


def _fingerprint(data: TrainingData, types: Columns) -> str:
    # The encodings of rows that a model scores do not change the rows that are read.
    ignored: dict[str, dict[int, set[str]]] = {
        # Fingerprints of earlier versions have no column of features that are named like it.
        "dense": {index: {"column"} for index, feature in enumerate(data.dense) if feature.column is None},
        "sparse": {
            index: {"raw_encoding"} if feature.column else {"raw_encoding", "column"}
            for index, feature in enumerate(data.sparse)
        },
    }
    transforms = tuple(each.model_copy(update={"transform": each.transform or "log1p"}) for each in data.dense)
    data = data.model_copy(update={"dense": transforms})
    included = {"label", "dense", "sparse", "transform"}
    # Fingerprints of earlier versions do not have these.
    added = (("labels", data.labels), ("weight", data.weight), ("features", data.features))
    included |= {name for name, is_used in added if is_used}
    spec = data.model_dump_json(include=included, exclude=ignored)
    described = sorted(f"{name}:{kind}" for name, kind in types)
    return xxhash.xxh3_64_hexdigest(f"{spec}\n{described}".encode())
