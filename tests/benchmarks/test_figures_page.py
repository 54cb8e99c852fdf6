"""The page of figures tells what was missed as plainly as what was met."""

from __future__ import annotations

from benchmarks.figures import Figure
from benchmarks.processes.figures_page import page

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
