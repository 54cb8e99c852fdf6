"""Rows written into parts as tests have them: table by table, bucket by bucket."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from elastrec.checkpoints import PartWriter, SectionKind

TABLES = ["ad", "user"]
"""Of the jobs that `make_job` makes."""


def write_bucket(
    writer: PartWriter,
    bucket: int,
    table: int,
    arrays: Mapping[str, np.ndarray],
    *,
    group: int = 0,
    kind: SectionKind = SectionKind.ROWS,
) -> None:
    """Writes a chunk with entries of one bucket and one table, by its number in the group."""
    count = len(arrays["ids"])
    versions = {"versions": np.zeros(count, np.uint32)} if "versions" not in arrays else {}
    columns = {**arrays, "tables": np.full(count, table, np.uint16), **versions}
    writer.write_chunk(group, kind, np.array([bucket]), np.array([count]), columns)
