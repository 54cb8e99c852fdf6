"""Files that are replaced as a whole: a reader sees the content before or after, never a part of it.

A file is written under a temporary name and renamed once it is complete.
"""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path

HIDDEN = ".elastrec-"
"""Prefix of the names of internal files, which listings do not show."""
_END, _RANDOM_DIGITS = ".tmp", 32


def temporary_prefix(target: str) -> str:
    """The beginning of all names from `temporary_name` of this target, and of some of other targets."""
    return f"{HIDDEN}{target}-"


def temporary_name(target: str) -> str:
    """A new name for a file that is renamed to `target` once it is complete."""
    return f"{temporary_prefix(target)}{uuid.uuid4().hex}{_END}"


def is_temporary(name: str) -> bool:
    """Whether a file's name is from `temporary_name`."""
    return name.startswith(HIDDEN) and name.endswith(_END)


def is_temporary_of(target: str, name: str) -> bool:
    """Whether `name` is from `temporary_name` of this target."""
    start = temporary_prefix(target)
    return is_temporary(name) and name.startswith(start) and len(name) == len(start) + _RANDOM_DIGITS + len(_END)


def write_whole(path: Path, content: bytes, *, mode: int = 0o666, is_durable: bool = False) -> None:
    """Writes a file under another name and renames it; deletes what killed processes have left of it.

    Several processes may write the same file; the content of the last one stays.

    Args:
        path: in a folder that exists.
        mode: of the file, without the bits of the umask.
        is_durable: the content would survive a failure of the machine.

    Raises:
        OSError: the file cannot be written; nothing is left of it.
    """
    while True:
        temporary = path.with_name(temporary_name(path.name))
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
                file.write(content)
                file.flush()
                if is_durable:
                    os.fsync(file.fileno())
            temporary.replace(path)
            break
        except FileNotFoundError:
            # Another process has written the file meanwhile, and has deleted this one's.
            if not path.exists():
                raise
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    drop_unfinished(path)


def drop_unfinished(path: Path) -> None:
    """Deletes what killed processes have left of a file, which is complete, whether or not this is possible."""
    with suppress(OSError):
        for other in path.parent.iterdir():
            if is_temporary_of(path.name, other.name):
                other.unlink(missing_ok=True)
