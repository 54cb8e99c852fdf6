"""Types that several threads may be the first to decode: msgspec has collected them when the imports are done."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastrec.checkpoints.flash import PartMemory
from tests.checkpoints.test_flash_memory import made, put
from tests.first_decode import types_collected

_POSITIONS = "from elastrec.platform.specs.splits import Positions"
_DECISIONS = """
from elastrec.platform.history.decisions import Decisions

Decisions._text = lambda self, run_id, file: "[]"
"""
_CLUSTER = """
from elastrec.platform.clusters.backends import decode_config
from elastrec.platform.specs.errors import SpecError
"""
_UNKNOWN_CLUSTER = """
try:
    decode_config('{"backend": "none"}', "here")
except SpecError as error:
    assert "'none'" in str(error), error
"""
_MARKS = """
from types import SimpleNamespace

import numpy as np

from elastrec.trainers.parameter_server.records.recorded_marks import encode_marks, marks_of

part = SimpleNamespace(file="part", groups=[], dense_buckets=[])
record = SimpleNamespace(
    uri="here", manifest=SimpleNamespace(parts=[part]), marks=lambda part: encode_marks([]),
    shares=lambda buckets: [SimpleNamespace(part=part)],
)
none = np.empty(0, np.int64)
"""


@pytest.mark.parametrize(
    ("imports", "decodes"),
    [
        pytest.param(_POSITIONS, """Positions.decode('{"streams": {}}')""", id="positions"),
        pytest.param(
            _POSITIONS, """Positions.decode('{"cursor": 0, "begun": []}')""", id="positions of earlier versions"
        ),
        pytest.param(_DECISIONS, "assert object.__new__(Decisions).decisions('run') == []", id="decisions of scaling"),
        pytest.param(_CLUSTER, _UNKNOWN_CLUSTER, id="the backend of a cluster"),
        pytest.param(_MARKS, "assert marks_of(record, none, none, has_same_buckets=True) == []", id="marks in records"),
    ],
)
def test_a_first_decode_collects_no_types(imports: str, decodes: str) -> None:
    assert types_collected(imports, decodes) == ("[]", "")


def test_the_first_look_for_a_part_in_memory_collects_no_types(tmp_path: Path) -> None:
    path = made(tmp_path / "memory")
    memory = PartMemory(path, writes=True)
    put(memory, "a", b"rows")
    memory.close()
    imports = f"""
from pathlib import Path

from elastrec.checkpoints.flash import PartMemory

memory = PartMemory(Path({str(path)!r}), writes=False)
"""
    assert types_collected(imports, "assert memory.find('a', 'a.bin') is not None") == ("[]", "")
