"""Merging encoded metric sketches; the state machine keeps them encoded, so that a state is a plain value."""

from __future__ import annotations

from elastrec.platform.data.sketch import BinaryMetricsSketch


def merge_sketches(first: bytes, second: bytes) -> bytes:
    """The encoded merge of two encoded sketches; empty bytes are a sketch of nothing."""
    if not first or not second:
        return first or second
    merged = BinaryMetricsSketch.decode(first)
    merged.merge(BinaryMetricsSketch.decode(second))
    return merged.encode()
