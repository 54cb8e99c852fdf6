"""finished_report: whether a folder holds what `convert` or `cluster` has written there before. Writes nothing."""

from __future__ import annotations

from typing import TypeVar

import pyarrow.fs as pafs
from pydantic import ValidationError

from elastrec.platform.data.files import join, locate, read_bytes
from elastrec.platform.specs.base import Spec
from elastrec.platform.specs.errors import DataError

R = TypeVar("R", bound=Spec)


def finished_report(destination: str, record_name: str, kind: type[R], verb: str, *, begun_name: str = "") -> R | None:
    """The report of what was finished there; None where nothing lies.

    Args:
        destination: a folder, local path or URI.
        record_name: file in it that is written last.
        verb: what is done there, for messages: `convert`, `cluster`.
        begun_name: file by which the remains of an interrupted run are known, which are written anew; empty: of none.

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
    is_begun = bool(begun_name) and _is_file(filesystem, join(destination, begun_name))
    if not is_begun and filesystem.get_file_info(pafs.FileSelector(path)):
        raise DataError(f"{destination}: holds files that were not {verb}ed; choose another folder or remove it")
    return None


def _is_file(filesystem: pafs.FileSystem, uri: str) -> bool:
    return bool(filesystem.get_file_info(locate(uri)[1]).type == pafs.FileType.File)
