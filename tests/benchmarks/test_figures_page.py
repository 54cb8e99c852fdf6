"""The page of figures shows what was missed as plainly as what was met."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.common import figures
from benchmarks.common.figures import Figure, OtherLoad
from benchmarks.common.figures_page import page

FIGURES = [
    Figure("reader.parquet", 0.61, "of pyarrow's rows", at_least=0.7),
    Figure("reader.criteo_tsv", 3.42, "of torchrec's rows", at_least=3.0),
    Figure("reader.parquet.seconds", 1.5, "s"),
    Figure("job_completion_time.mixed_p90", -64.7, "%", at_most=-35.7, simulated=True),
]


def test_a_line_per_figure_with_a_goal_by_benchmark_missed_and_simulated_ones_marked() -> None:
    found = page([figure.document() for figure in FIGURES])
    lines = [line for line in found.splitlines() if line.startswith(("##", "| "))]
    assert lines == [
        "## job_completion_time",
        "| figure | value | goal | unit | |",
        "| mixed p90 *(simulated)* | -64.7 | ≤ -35.7 | % | met |",
        "## reader",
        "| figure | value | goal | unit | |",
        "| parquet | 0.61 | ≥ 0.7 | of pyarrow's rows | **missed** |",
        "| criteo tsv | 3.42 | ≥ 3 | of torchrec's rows | met |",
    ]


def test_what_others_used_of_the_machine_stands_beside_a_figure() -> None:
    figure = Figure("storage.two_cores", 1.2, "×", at_least=1.7, settings={"others_cores": 1.52})
    assert "| **missed**, while others used 1.5 cores |" in page([figure.document()])


def test_the_load_of_others_leaves_out_this_process_and_the_time_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy, moments, own = iter([100.0, 106.0]), iter([10.0, 12.0]), iter([1.0, 3.0])
    monkeypatch.setattr(figures, "_busy_seconds", lambda: next(busy))
    monkeypatch.setattr(figures.time, "monotonic", lambda: next(moments))
    monkeypatch.setattr(figures, "_own_seconds", lambda: next(own))
    with OtherLoad() as load:
        pass
    assert load.cores == (106 - 100 - (3 - 1)) / (12 - 10)


def test_a_child_that_has_ended_is_counted_as_the_benchmarks_own() -> None:
    before = figures._own_seconds()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    assert figures._own_seconds() - before >= 0.3
