"""Small local files that are replaced as a whole: a reader sees the content before or after, never a part of it."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path

_END = ".tmp"


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
    start = f".{path.name}."
    while True:
        temporary = path.with_name(f"{start}{uuid.uuid4().hex}{_END}")
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
    # The file is complete, whether or not this is possible.
    with suppress(OSError):
        for other in path.parent.iterdir():
            name = other.name
            if name.startswith(start) and name.endswith(_END) and len(name) == len(temporary.name):
                other.unlink(missing_ok=True)
