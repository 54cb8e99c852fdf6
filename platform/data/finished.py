"""Folders that `convert` and `cluster` write as a whole or not at all: what is finished, and how one is written."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pyarrow.fs as pafs
from pydantic import ValidationError

from elastrec.platform.data.files import join, locate, read_bytes, write_bytes
from elastrec.platform.specs.base import Spec
from elastrec.platform.specs.errors import DataError

R = TypeVar("R", bound=Spec)
_UNFINISHED = "_unfinished"
"""A file in a folder that cannot be renamed, for as long as it is being written."""


def finished_report(destination: str, record_name: str, kind: type[R], verb: str) -> R | None:
    """The report of what was finished there; None where nothing lies, or what an interrupted run has left.

    Args:
        destination: a folder, local path or URI.
        record_name: file in it that is written last.
        verb: what is done there, for messages: `convert`, `cluster`.

    Raises:
        DataError: a file lies there, the record cannot be read, or the folder holds other files.
    """
    filesystem, path = locate(destination)
    info = filesystem.get_file_info(path)
    if info.type == pafs.FileType.NotFound:
        return None
    if info.type == pafs.FileType.File:
        raise DataError(f"{destination}: is a file; choose a folder")
    record = join(destination, record_name)
    if _is_file(filesystem, record):
        try:
            return kind.model_validate_json(read_bytes(record))
        except ValidationError as error:
            raise DataError(f"{record}: cannot be read ({error}); remove the folder and {verb} again") from error
    is_unfinished = _is_file(filesystem, join(destination, _UNFINISHED))
    if not is_unfinished and filesystem.get_file_info(pafs.FileSelector(path)):
        raise DataError(f"{destination}: holds files that were not {verb}ed; choose another folder or remove it")
    return None


@contextmanager
def staged_folder(target: str) -> Iterator[str]:
    """A folder to write into that has become `target` when the block ends.

    On a local file system it lies beside the target, and is removed after an exception. Elsewhere it is the target
    itself: what an interrupted run has left there is removed, and `finished_report` takes it as unfinished until then.

    Args:
        target: of which `finished_report` has found none.
    """
    filesystem, path = locate(target)
    if not isinstance(filesystem, pafs.LocalFileSystem):
        filesystem.delete_dir_contents(path, missing_dir_ok=True)
        mark = join(target, _UNFINISHED)
        write_bytes(mark, b"")
        yield target
        filesystem.delete_file(locate(mark)[1])
        return
    final = Path(path)
    staging = final.with_name(f".{final.name}.unfinished")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        yield str(staging)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    if final.is_dir():
        final.rmdir()  # seen to be empty; a rename must not meet it
    staging.rename(final)


def _is_file(filesystem: pafs.FileSystem, uri: str) -> bool:
    return bool(filesystem.get_file_info(locate(uri)[1]).type == pafs.FileType.File)
