"""The store in a folder of a local or shared POSIX file system.

To write durably, a file is synchronised and renamed into place, then its directory is synchronised. A crash leaves at
most a hidden temporary file, which no listing shows.

A folder whose file system is not mounted looks empty. Therefore, the root of a store contains the file MARKER. Pods
call `expect_existing_stores`; then a store without the file counts as not reachable, so pods do not create its folders
under the mount point, and do not conclude that records were deleted.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from elastrec.checkpoints.errors import DroppedError, StoreError
from elastrec.checkpoints.stores.store import Store, StoreWriter, checked_key
from elastrec.checkpoints.stores.uncached_file import UncachedFile
from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.specs.text.whole_file import HIDDEN, drop_unfinished, is_temporary, temporary_name

if TYPE_CHECKING:
    from typing_extensions import Buffer

MARKER = f"{HIDDEN}store"
"""A file in the root of every store, which no listing shows."""
_must_exist = False


@contextmanager
def _explained(what: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        remedy = "check that the disk has room and the folder's rights"
        if isinstance(error, FileExistsError | NotADirectoryError):
            remedy = "a folder is needed where there is a file; move the file away or choose another folder"
        raise StoreError(f"{what} {path}: {reason}; {remedy}") from error


def _synchronise_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def expect_existing_stores() -> None:
    """From now on, this process creates no stores, and a store without a marker counts as not reachable. Pods call this
    first.

    The launch of a job creates its store (`Store.create`).
    """
    global _must_exist
    _must_exist = True


def _check_is_there(path: Path) -> None:
    """Raises StoreError if no store contains the path, although a store must exist."""
    if _must_exist and not any((folder / MARKER).exists() for folder in (path, *path.parents)):
        raise StoreError(
            f"{path}: no checkpoint store is there: the file {MARKER} is missing in every folder above; mount the "
            "store's file system again"
        )


def _make_folder(folder: Path) -> None:
    """Creates a folder of a store and its parents durably."""
    _check_is_there(folder)
    _make_parents_first(folder)


def _make_parents_first(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_parents_first(folder.parent)
    folder.mkdir(exist_ok=True)
    _synchronise_folder(folder.parent)


class _LocalWriter(StoreWriter):
    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = path.parent / temporary_name(path.name)
        with _explained("could not write", path):
            _make_folder(path.parent)
            self._file = UncachedFile(self._temporary)
        self._open = True

    def write(self, data: Buffer) -> None:
        with _explained("could not write", self._path):
            self._file.write(data)

    def synchronise(self) -> Path:
        """Makes the temporary file durable and returns its path; the caller moves it into place."""
        with _explained("could not write", self._path):
            self._file.synchronise()
        self._open = False
        return self._temporary

    def close(self) -> None:
        if not self._open:
            return
        try:
            temporary = self.synchronise()
            with _explained("could not write", self._path):
                temporary.replace(self._path)
                _synchronise_folder(self._path.parent)
        except BaseException as error:
            self.abort()
            if isinstance(error.__cause__, FileNotFoundError) and self._path.exists():
                raise DroppedError(str(error)) from error
            raise

    def abort(self) -> None:
        self._open = False
        with contextlib.suppress(OSError):
            self._file.close()
        self._temporary.unlink(missing_ok=True)


class LocalStore(Store):
    """A folder. Two processes may use it at once, also over a file system with POSIX locks and hard links.

    Args:
        root: absolute path; created by the first write.
    """

    def __init__(self, root: Path) -> None:
        self._root = Path(os.path.normpath(root))
        self.uri = f"file://{quote(str(self._root))}"

    def create(self) -> None:
        with _explained("could not make the checkpoint store", self._root):
            _make_parents_first(self._root)
            marker = self._root / MARKER
            if not marker.exists():
                marker.touch()
                _synchronise_folder(self._root)

    def child_uri(self, key: str) -> str:
        return f"file://{quote(str(self._path(key)))}"

    def _path(self, key: str) -> Path:
        return self._root / checked_key(key)

    def local_path(self, key: str) -> Path | None:
        return self._path(key)

    def open_write(self, key: str) -> StoreWriter:
        return _LocalWriter(self._path(key))

    def get(self, key: str) -> bytes:
        path = self._path(key)
        with _explained("could not read", path), self._existing(path):
            return path.read_bytes()

    @contextmanager
    def _existing(self, path: Path) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            _check_is_there(path)
            raise CheckpointError(f"{path}: there is no such file in the checkpoint store") from None

    def get_range(self, key: str, start: int, length: int) -> bytes:
        path = self._path(key)
        with _explained("could not read", path), self._existing(path), path.open("rb") as file:
            file.seek(start)
            data = file.read(length)
        if len(data) != length:
            raise CheckpointError(f"{path}: asked for {length} bytes from {start}, the file has only {len(data)} there")
        return data

    def size(self, key: str) -> int | None:
        path = self._path(key)
        with _explained("could not look at", path):
            try:
                status = path.stat()
            except (FileNotFoundError, NotADirectoryError):
                _check_is_there(path)
                return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def keys(self, prefix: str = "") -> list[str]:
        return self._files(prefix, lambda name: not name.startswith(HIDDEN))

    def _files(self, prefix: str, wanted: Callable[[str], bool]) -> list[str]:
        start = self._path(prefix) if prefix else self._root
        keys = []

        def not_listed(error: OSError) -> None:
            # A folder that does not exist has no keys; one that cannot be listed does not count as empty.
            if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
                raise error
            _check_is_there(start)

        with _explained("could not list", start):
            for folder, _, names in os.walk(start, onerror=not_listed):
                relative = Path(folder).relative_to(self._root)
                keys += [(relative / name).as_posix() for name in names if wanted(name)]
        return sorted(keys)

    def unfinished(self, prefix: str = "") -> list[str]:
        return self._files(prefix, is_temporary)

    def drop_unfinished(self, key: str) -> None:
        drop_unfinished(self._path(key))

    def folders(self, prefix: str = "") -> list[str]:
        start = self._path(prefix) if prefix else self._root
        with _explained("could not list", start):
            try:
                with os.scandir(start) as entries:
                    return sorted(entry.name for entry in entries if entry.is_dir())
            except (FileNotFoundError, NotADirectoryError):
                _check_is_there(start)
                return []

    def delete(self, key: str) -> None:
        path = self._path(key)
        with _explained("could not delete", path):
            try:
                path.unlink()
            except FileNotFoundError:
                return
            _synchronise_folder(path.parent)

    def delete_tree(self, prefix: str) -> None:
        path = self._path(prefix)

        def not_deleted(_function: object, _path: str, error: tuple[object, BaseException, object]) -> None:
            # Another process may delete or rename files of the folder meanwhile; the others are deleted nevertheless.
            if not isinstance(error[1], FileNotFoundError):
                raise error[1]

        with _explained("could not delete", path):
            shutil.rmtree(path, onerror=not_deleted)
            with contextlib.suppress(FileNotFoundError):
                _synchronise_folder(path.parent)

    def _create(self, key: str, data: Buffer) -> bool:
        path = self._path(key)
        writer = _LocalWriter(path)
        try:
            writer.write(data)
            temporary = writer.synchronise()
            with _explained("could not write", path):
                try:
                    # Only a hard link creates a file with its contents atomically, unless it exists.
                    os.link(temporary, path)
                except FileExistsError:
                    return False
                except FileNotFoundError:
                    # Another writer has created the object, and dropped this one's file.
                    if not path.exists():
                        raise
                    return False
                _synchronise_folder(path.parent)
                return True
        finally:
            writer.abort()

    def get_if_exists(self, key: str) -> bytes | None:
        path = self._path(key)
        with _explained("could not read", path):
            try:
                return path.read_bytes()
            except FileNotFoundError:
                _check_is_there(path)
                return None

    def conditional_writes(self) -> bool:
        # POSIX guarantees this for hard links; a file system without hard links refuses, and overwrites nothing.
        return True

    @property
    def _place(self) -> str:
        return self.uri
