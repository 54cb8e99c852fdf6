"""CompressedText: sequential reading of a compressed text file."""

from __future__ import annotations

import io

import pyarrow as pa

_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_SKIPPED_BYTES = 2**20


def codec_of(uri: str) -> str:
    """Arrow's name of the codec for the ending of a file's name; empty for plain text."""
    return next((codec for suffix, codec in _CODECS.items() if uri.endswith(suffix)), "")


class CompressedText(io.RawIOBase):
    """The decompressed bytes of a file; `seek` is possible forward only.

    Args:
        stream: the compressed file; closed with this one.
        codec: see `codec_of`.
    """

    def __init__(self, stream: pa.NativeFile, codec: str) -> None:
        self._stream = pa.CompressedInputStream(stream, codec)
        self._position = 0

    def read(self, size: int = -1) -> bytes:
        """This many bytes; fewer at the end only. Raises OSError if the file is damaged or cut off."""
        piece: bytes = self._stream.read(size if size >= 0 else None)
        self._position += len(piece)
        return piece

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence != io.SEEK_SET or offset < self._position:
            raise io.UnsupportedOperation(f"byte {offset} is before byte {self._position} of compressed text")
        while self._position < offset and self.read(min(_SKIPPED_BYTES, offset - self._position)):
            pass
        return self._position

    def close(self) -> None:
        self._stream.close()
        super().close()
