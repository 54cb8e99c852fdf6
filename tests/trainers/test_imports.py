from __future__ import annotations

import gc

import pytest

from elastrec.trainers.imports import without_collector


def test_the_collector_works_again_after_the_imports() -> None:
    with pytest.raises(ImportError), without_collector():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled()
