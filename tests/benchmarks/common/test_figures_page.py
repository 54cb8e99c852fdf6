"""The page of figures is generated from stored results and shows missed goals as clearly as met ones."""

from __future__ import annotations

import datetime
import subprocess
import sys

import pytest

from benchmarks.common import figures, figures_page
from benchmarks.common.figures import Figure, OtherLoad
from benchmarks.common.figures_page import page
from benchmarks.common.results import Origin, Result, load

FIGURES = [
    Figure("reader.parquet", 0.61, "of pyarrow's rows", at_least=0.7),
    Figure("reader.criteo_tsv", 3.42, "of torchrec's rows", at_least=3.0),
    Figure("reader.parquet.seconds", 1.5, "s"),
    Figure("job_completion_time.mixed_p90", -64.7, "%", at_most=-35.7, simulated=True),
]
MEASURED = Origin(datetime.date(2026, 1, 2), "0123456789" * 4)
PUBLISHED = Origin(datetime.date(2026, 1, 3), "abcdef0123" * 4, of_publication=True)


def results(*figures: Figure, measured: Origin = MEASURED) -> dict[str, list[Result]]:
    by_benchmark: dict[str, list[Result]] = {}
    for figure in figures:
        result = Result(**figure.document(), measured=measured)
        by_benchmark.setdefault(result.benchmark, []).append(result)
    return by_benchmark


def rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(("##", "| ", "- "))]


def test_the_page_is_generated_from_the_stored_results() -> None:
    assert figures_page.PAGE.read_text() == figures_page.render(), "python -m benchmarks.common.figures_page"


def test_a_line_per_figure_with_a_goal_by_benchmark_missed_and_simulated_ones_marked() -> None:
    assert rows(page(results(*FIGURES), [])) == [
        "## job_completion_time",
        "| figure | value | goal | unit | | measured |",
        "| mixed p90 *(simulated)* | -64.7 | ≤ -35.7 | % | met | 2026-01-02, `0123456` |",
        "## reader",
        "| figure | value | goal | unit | | measured |",
        "| parquet | 0.61 | ≥ 0.7 | of pyarrow's rows | **missed** | 2026-01-02, `0123456` |",
        "| criteo tsv | 3.42 | ≥ 3 | of torchrec's rows | met | 2026-01-02, `0123456` |",
    ]


def compared(name: str, value: float, unit: str = "%", **settings: object) -> Figure:
    goal = -10.0 if name.endswith("optimus.median") else None
    return Figure(f"calls.{name}", value, unit, at_most=goal, simulated=True, settings=settings, compared=True)


def test_comparisons_stand_in_one_table_with_a_goal_or_without_and_with_their_intervals() -> None:
    figures = [
        compared("us_against_optimus.median", 18.3, **{"95_%_interval": "+10.0 to +26.0"}),
        compared("us_against_static.mean", -30.1),
        compared("us_against_optimus.mean", 1.5),
        compared("us_against_static.median", -20.0),
    ]
    text = page(results(*figures), [])
    assert rows(text)[4:] == [
        "| % | median | mean | measured |",
        "| us against optimus *(simulated)* | 18.3 (+10.0 to +26.0) | 1.5 | 2026-01-02, `0123456` |",
        "| us against static *(simulated)* | -20 | -30.1 | 2026-01-02, `0123456` |",
    ]
    assert "| us against optimus.median *(simulated)* | 18.3 | ≤ -10 | % | **missed** |" in text
    assert "### Comparisons of calls" in text


def test_comparisons_of_other_columns_or_units_have_a_line_each() -> None:
    figures = [compared("alone.minutes", 37.0, "min"), compared("alone.against", 18.0), compared("mixed.memory", 31.0)]
    assert [line.rsplit(" | ", 1)[0] for line in rows(page(results(*figures), []))[1:]] == [
        "### Comparisons of calls",
        "| figure | value | unit",
        "| alone.minutes *(simulated)* | 37 | min",
        "| alone.against *(simulated)* | 18 | %",
        "| figure | value | unit",
        "| mixed.memory *(simulated)* | 31 | %",
    ][1:]


def test_a_figure_that_is_neither_a_goal_nor_compared_is_not_on_the_page() -> None:
    assert "seconds" not in page(results(*FIGURES), [])


def test_losses_against_a_peer_are_on_the_page() -> None:
    lost = next(
        result for result in load()["job_completion_time"] if result.figure.endswith("alone.against_optimus_greedy")
    )
    assert f"| alone.against optimus greedy *(simulated)* | {lost.value:.4g} | % |" in figures_page.render()


def test_a_commit_that_only_published_a_figure_is_marked() -> None:
    assert rows(page(results(FIGURES[0], measured=PUBLISHED), []))[-1].endswith("| 2026-01-03, `abcdef0`\\* |")


def test_benchmarks_without_a_result_are_listed() -> None:
    assert rows(page(results(FIGURES[0]), ["storage", "reader", "calls"]))[-3:] == [
        "## Not measured yet",
        "- `calls`",
        "- `storage`",
    ]


@pytest.mark.parametrize(("of_figure", "of_run", "shown"), [(1.52, 0.2, "1.5"), (None, 0.2, "0.2")])
def test_the_load_of_other_processes_is_beside_a_figure(of_figure: float | None, of_run: float, shown: str) -> None:
    settings = {} if of_figure is None else {"others_cores": of_figure}
    figure = Figure("storage.two_cores", 1.2, "×", at_least=1.7, settings=settings)
    measured = Origin(MEASURED.date, MEASURED.commit, others_cores=of_run)
    assert f"| **missed**, while others used {shown} cores |" in page(results(figure, measured=measured), [])


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
