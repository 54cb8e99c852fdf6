"""Reads the log segments of bounded size that a pod's supervisor writes; positions count all bytes of the log."""

from __future__ import annotations

from pathlib import Path

_CHUNK_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 16


def _segments(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.name.isdigit())
    except FileNotFoundError:
        return []


def end_position(folder: Path) -> int:
    """Position after the last byte."""
    segments = _segments(folder)
    return int(segments[-1].name) + segments[-1].stat().st_size if segments else 0


def read_from(folder: Path, position: int) -> tuple[bytes, int]:
    """Up to 1 MiB from a position and the position after it; begins with the oldest kept byte if that is later."""
    for path in _segments(folder):
        start = int(path.name)
        try:
            with path.open("rb") as file:
                file.seek(max(0, position - start))
                data = file.read(_CHUNK_BYTES)
        except FileNotFoundError:
            continue  # rotated away meanwhile
        if data:
            return data, max(position, start) + len(data)
    return b"", position


def tail_position(folder: Path, lines: int) -> int:
    """Position of the last lines, by their number; a last line without a newline counts."""
    if lines <= 0:
        return end_position(folder)
    segments = _segments(folder)
    lines_left = lines
    last = True
    for path in reversed(segments):
        start = int(path.name)
        try:
            opened = path.open("rb")
        except FileNotFoundError:
            return start  # rotated away meanwhile, with all older ones
        with opened as file:
            position = file.seek(0, 2)
            while position:
                size = min(_BLOCK_BYTES, position)
                position -= size
                file.seek(position)
                block = file.read(size)
                scan = len(block)
                if last and block.endswith(b"\n"):
                    scan -= 1
                last = False
                while (newline := block.rfind(b"\n", 0, scan)) >= 0:
                    lines_left -= 1
                    if lines_left == 0:
                        return start + position + newline + 1
                    scan = newline
    return int(segments[0].name) if segments else 0
