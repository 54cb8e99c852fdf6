"""Compiles the numba kernels of all rooms and caches them, because compiling costs a process many seconds.

numba recompiles a kernel when its own file has changed, but not when the file of a kernel that it calls has changed.
Therefore, every room names all sources of its kernels, and the cache folder depends on a digest of these sources.
"""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xxhash

_UNUSED_SECONDS = 7 * 86_400.0
"""A folder that no process has used for this time belongs to an old version of the sources."""

_choosing = threading.Lock()


def kernels_of(*sources: Path | str) -> Any:
    """Decorators like `numba.njit(cache=True, nogil=True)`: `kernel = kernels_of(source)(**other_options_of_numba)`.

    Args:
        sources: files, and folders with all of their files, on whose text the kernels depend.

    Kernels are kept in the folder that `NUMBA_CACHE_DIR` names, otherwise within the package. Where that cannot be
    written, they are kept in a folder of this user, to which kernels that are there already are copied first.
    """

    @functools.cache
    def folder() -> Path | None:
        return _folder_for(tuple(map(Path, sources)))

    def options_of(**options: Any) -> Callable[[Callable[..., Any]], Any]:
        import numba  # half a second, which processes without kernels need not spend

        def decorate(function: Callable[..., Any]) -> Any:
            with _kept_in(folder()):
                kernel = numba.njit(cache=True, nogil=True, **options)(function)
            if not numba.config.DISABLE_JIT:
                _bear_failed_saves(kernel)
            return kernel

        return decorate

    return options_of


def _bear_failed_saves(kernel: Any) -> None:
    """Makes a kernel usable that cannot be saved, for example because the disk is full: numba fails its call."""
    save = kernel._cache.save_overload

    def save_overload(signature: Any, compiled: Any) -> None:
        try:
            save(signature, compiled)
        except OSError as error:
            _say_once(kernel._cache.cache_path, error.strerror or str(error))

    kernel._cache.save_overload = save_overload


@functools.cache
def _say_once(folder: str, problem: str) -> None:
    import structlog  # which processes without kernels need not load for this room

    structlog.get_logger(__name__).warning(
        "kernels_not_saved", folder=folder, problem=problem, effect="every process compiles them again"
    )


@contextmanager
def _kept_in(folder: Path | None) -> Iterator[None]:
    """Sets numba's cache folder, which numba reads when it decorates a function, not later."""
    from numba import config

    if folder is None:
        yield
        return
    with _choosing:
        before, config.CACHE_DIR = config.CACHE_DIR, str(folder)
        try:
            yield
        finally:
            config.CACHE_DIR = before


def _folder_for(sources: tuple[Path, ...]) -> Path | None:
    """A folder for these sources that this user can write; None if there is none, so that numba chooses one."""
    name = f"kernels-{_digest(sources)}"
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    base = Path(chosen) if chosen else Path(__file__).parent / "__pycache__"
    first = base / name
    if _is_writable(first) and _prepared(first):
        if not chosen:  # in a folder of the user nothing is removed
            _remove_unused(base)
        return first
    for base in _bases_of_user():
        folder = base / name
        if not folder.exists():
            _copy(first, folder)
        if _prepared(folder):
            _remove_unused(base)
            return folder
    return None


def _is_writable(folder: Path) -> bool:
    """Whether this user can write to the folder or, if it does not exist, create it."""
    nearest = folder.absolute()
    try:
        while not nearest.exists():
            nearest = nearest.parent
    except PermissionError:
        return False
    return os.access(nearest, os.W_OK)


def _prepared(folder: Path) -> bool:
    """Creates the folder, or marks it as used; returns whether that was possible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
    except OSError:
        return False
    return True


def _copy(source: Path, folder: Path) -> None:
    """Copies the kernels of a folder that cannot be written, such as one of a container image: numba reads only from
    folders that it can write. Without a source, the copy is empty."""
    copied = None
    try:
        copied = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
        for file in source.glob("*/*"):
            (copied / file.parent.name).mkdir(exist_ok=True)
            shutil.copyfile(file, copied / file.parent.name / file.name)
        copied.rename(folder)
    except OSError:  # there is no room, or another process has copied them meanwhile
        if copied is not None:
            shutil.rmtree(copied, ignore_errors=True)


def _bases_of_user() -> Iterator[Path]:
    for parent in (_home_cache(), Path(tempfile.gettempdir())):
        if parent is None:
            continue
        base = parent / f"elastrec-kernels-{os.getuid()}"
        try:
            base.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Compiled code of somebody else must never be loaded.
            if base.stat().st_uid == os.getuid():
                yield base
        except OSError:
            continue


def _home_cache() -> Path | None:
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache)
    try:
        return Path.home() / ".cache"
    except RuntimeError:  # a container may run as a user without a name and without HOME
        return None


def _digest(sources: tuple[Path, ...]) -> str:
    digests = [_digest_of(source) for source in sources]
    return digests[0] if len(digests) == 1 else xxhash.xxh3_64_hexdigest("".join(digests).encode())


@functools.cache
def _digest_of(source: Path) -> str:
    """Once for each process: a room's sources are also those of the kernels of other rooms that call them."""
    digest = xxhash.xxh3_64()
    files = sorted(source.rglob("*.py")) if source.is_dir() else [source]
    for file in files:
        # With lengths, so that text that moves from one file to the next is another state.
        text = file.read_bytes()
        digest.update(f"{file.name} {len(text)}\0".encode() + text)
    return digest.hexdigest()


def _remove_unused(base: Path) -> None:
    for folder in base.glob("kernels-*"):
        try:
            if time.time() - folder.stat().st_mtime > _UNUSED_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # another process has removed it
