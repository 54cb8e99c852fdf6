from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from elastrec.trainers.imports import without_collector


def test_the_collector_works_again_after_the_imports() -> None:
    with pytest.raises(ImportError), without_collector():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled()
    gc.unfreeze()


def test_the_check_of_a_model_loads_torch_without_the_collector() -> None:
    code = "import gc, elastrec.trainers.check; print(gc.isenabled(), gc.get_freeze_count() > 100_000)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["True", "True"]
