"""A record's manifest, which several threads decode at once when the records of a store are listed."""

from __future__ import annotations

import subprocess
import sys

_DECODES = """
import typing
from elastrec.checkpoints.manifest import decode_manifest
from elastrec.checkpoints.errors import DamagedRecordError
import msgspec, xxhash

collected = []


class Reference(typing.ForwardRef, _root=True):
    def __init__(self, argument, **options):
        collected.append(argument)
        super().__init__(argument, **options)


typing.ForwardRef = Reference
inner = b'{"format_version": 1}'
envelope = {"checksum": xxhash.xxh3_64_hexdigest(inner), "manifest": msgspec.Raw(inner)}
try:
    decode_manifest(msgspec.json.encode(envelope), "here")
except DamagedRecordError as error:
    assert "missing required field" in str(error), error
print(collected)
"""


def test_the_first_manifests_can_be_decoded_by_several_threads() -> None:
    """msgspec collects the types of a class when it first decodes it, and crashes if two threads decode it then."""
    done = subprocess.run([sys.executable, "-c", _DECODES], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
