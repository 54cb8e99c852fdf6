"""Prefetching does not change values and causes no memory faults."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from elastrec.trainers.parameter_server.prefetch import prefetch


@njit
def _ask_and_read(array, index):  # type: ignore[no-untyped-def]
    prefetch(array, index)
    return array.sum()


@pytest.mark.parametrize("index", [0, 2, -1, -(2**40), 2**40])
def test_any_index_may_be_prefetched(index: int) -> None:
    assert _ask_and_read(np.ones((3, 5), np.float32), index) == 15
    assert _ask_and_read(np.ones(3, np.uint32), index) == 3


def test_an_index_becomes_one_prefetch_instruction() -> None:
    _ask_and_read(np.ones(3, np.uint32), 1)
    module = _ask_and_read.inspect_llvm(_ask_and_read.signatures[-1])
    assert "call void @llvm.prefetch" in module
