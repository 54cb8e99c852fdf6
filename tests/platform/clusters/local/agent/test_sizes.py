"""The size of a local cluster is kept in its agent's journal."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from elastrec.platform.clusters.local.agent.journal import Journal
from elastrec.platform.clusters.local.agent.sizes import keep_size, machine_size
from elastrec.platform.specs.errors import ClusterError


@pytest.mark.parametrize(("cores", "memory_bytes"), [(math.nan, None), (math.inf, None), (0.0, None), (2.0, 0)])
def test_a_size_that_no_cluster_can_have_is_refused_and_not_kept(
    tmp_path: Path, cores: float, memory_bytes: int | None
) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    try:
        with pytest.raises(
            ClusterError, match=r"(cores|memory_bytes): (nan|inf|0|0.0) is not allowed; allowed: a number"
        ):
            keep_size(journal, cores, memory_bytes)
        assert keep_size(journal, None, None) == machine_size()
    finally:
        journal.close()
