"""PlannedFile: opens a file of a manifest and checks that it has not changed."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.fs as pafs

from elastrec.platform.data.entries import DataFile
from elastrec.platform.data.files import locate
from elastrec.platform.specs.errors import DataError

_SECOND_NS = 10**9


class PlannedFile:
    """A file of a manifest, opened for reading.

    Args:
        file: its entry in the manifest.

    Attributes:
        stream: the open file.
        is_local: whether it is on a local file system, where a file may change while it is open.

    Raises:
        DataError: the file has changed.
        OSError: it cannot be opened.
    """

    def __init__(self, file: DataFile) -> None:
        self._file = file
        self._filesystem, self._path = locate(file.uri)
        self.is_local = isinstance(self._filesystem, pafs.LocalFileSystem)
        self.stream: pa.NativeFile = self._filesystem.open_input_file(self._path)
        try:
            # After opening, so that a replacement in between is noticed, too.
            self._check()
        except BaseException:
            self.stream.close()
            raise

    def check_read(self) -> None:
        """Checks again after a read of a local file. Objects of a store are only replaced as a whole.

        Raises:
            DataError: the file has changed.
        """
        if self.is_local:
            self._check()

    def _check(self) -> None:
        file = self._file
        info = self._filesystem.get_file_info(self._path)
        differences = []
        if info.size != file.bytes:
            differences.append(f"it has {info.size} bytes, the manifest says {file.bytes}")
        if not self._is_same_time(info.mtime_ns, file.modified_ns):
            differences.append(
                f"it was modified at {_moment(info.mtime_ns)}, the manifest says {_moment(file.modified_ns)}"
            )
        if info.type != pafs.FileType.File:
            differences = ["it is gone"]
        if differences:
            raise DataError(
                f"{file.uri}: the file changed after the job was planned: {'; '.join(differences)}; start the job "
                "again, and let nothing write to a partition while a job reads it"
            )

    def _is_same_time(self, first_ns: int | None, second_ns: int | None) -> bool:
        if first_ns is None or second_ns is None:
            return True
        # Object stores give times in milliseconds for a listing and in seconds for one object.
        unit_ns = 1 if self.is_local else _SECOND_NS
        return first_ns // unit_ns == second_ns // unit_ns


def _moment(time_ns: int | None) -> str:
    return "?" if time_ns is None else datetime.fromtimestamp(time_ns / _SECOND_NS, UTC).isoformat()
