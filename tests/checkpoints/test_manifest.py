"""The manifest of a record, which several threads decode at the same time when a store is listed."""

from __future__ import annotations

from tests.first_decode import types_collected

_IMPORTS = """
from elastrec.checkpoints.manifest import decode_manifest
from elastrec.checkpoints.errors import DamagedRecordError
import msgspec, xxhash
"""
_DECODES = """
inner = b'{"format_version": 1}'
envelope = {"checksum": xxhash.xxh3_64_hexdigest(inner), "manifest": msgspec.Raw(inner)}
try:
    decode_manifest(msgspec.json.encode(envelope), "here")
except DamagedRecordError as error:
    assert "missing required field" in str(error), error
"""


def test_the_first_manifests_can_be_decoded_by_several_threads() -> None:
    assert types_collected(_IMPORTS, _DECODES) == ("[]", "")
