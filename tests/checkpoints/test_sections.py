"""The index of a part, which several threads read at the same time."""

from __future__ import annotations

from pathlib import Path

from tests.first_decode import types_collected

_IMPORTS = """
from elastrec.checkpoints import open_store
from elastrec.checkpoints.sections import read_index
import xxhash
"""
_READS = """
index = bytes([0x90])
sections = read_index(
    open_store({folder!r}), "part", size_bytes=1, start=0, length=1, checksum=xxhash.xxh3_64_intdigest(index)
)
assert sections == [], sections
"""


def test_the_first_indices_can_be_read_by_several_threads(tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(bytes([0x90]))  # an empty array of msgpack
    assert types_collected(_IMPORTS, _READS.format(folder=str(tmp_path))) == ("[]", "")
