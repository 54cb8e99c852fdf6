"""Output folders of `convert` and `cluster`, which are written completely or not at all."""

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
"""A file that marks a folder while it is written, on file systems that cannot rename folders."""


def finished_report(destination: str, record_name: str, kind: type[R], verb: str) -> R | None:
    """The report in a finished folder; None if the folder is missing, empty, or has only files of an interrupted run.

    Args:
        destination: a folder, local path or URI.
        record_name: the file with the report, which is written last.
        kind: the type of the report.
        verb: the command, for messages: `convert`, `cluster`.

    Raises:
        DataError: the destination is a file, the report cannot be read, or the folder contains other files.
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
    """Yields a folder to write into, which is `target` when the block has ended.

    On a local file system it is a folder beside the target, which is removed after an exception. Elsewhere it is the
    target itself: files of an interrupted run are removed first, and `finished_report` returns None until the block has
    ended.

    Args:
        target: a folder for which `finished_report` returned None.
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
        final.rmdir()  # it is empty, and would prevent the rename
    staging.rename(final)


def _is_file(filesystem: pafs.FileSystem, uri: str) -> bool:
    return bool(filesystem.get_file_info(locate(uri)[1]).type == pafs.FileType.File)
