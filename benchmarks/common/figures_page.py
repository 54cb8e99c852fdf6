"""The docs' page of figures, generated from the stored results: goals met and missed, simulated or measured, with
commits.

The page also has comparisons: the peers and assumptions with which a benchmark wins or loses.

python -m benchmarks.common.figures_page
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.common.names import benchmarks
from benchmarks.common.results import INTERVAL, ROOT, Origin, Result, load

PAGE = ROOT / "docs" / "figures.md"
_HEAD = """# Figures

What is claimed, measured by `benchmarks/` on a machine of two cores; with goals, also where they are missed. Every
figure is one of its own run. A ratio is against a peer or a baseline that took turns with it, and the median of the
rounds unless the benchmark's docstring says otherwise. In *simulated* ones a part of the system was replaced: the
cluster by the [simulator](simulator.md), workers by others that send the same messages, or jobs by generated ones.
`make bench` measures all of them, `python -m benchmarks NAME` one, with its settings and what else it found. `--save`
keeps the results in `benchmarks/results`, from which `python -m benchmarks.common.figures_page` writes this page.

Beside each figure stand the day on which it was measured and the commit of the code. Where they have a \\*, they are
those of the change that published the figure: which code had been measured was not kept.

Comparisons have figures without a goal, too: against each peer, and with one assumption changed at a time. Brackets
have the 95 % interval over the seeds of a simulation. Times and core-hours are better the lower they are: above 0 the
peer wins. *both* is the mean time × core-hours.
"""
_COMPARISONS = "### Comparisons of {}"
_TABLE = "| figure | value | goal | unit | | measured |\n|---|---|---|---|---|---|"


def page(results: Mapping[str, Sequence[Result]], known: Iterable[str]) -> str:
    """Figures with a goal, by benchmark, comparisons, and the known benchmarks without a result."""
    parts = [_HEAD]
    for benchmark, figures in sorted(results.items()):
        lines = [_row(result) for result in figures if result.goal is not None]
        if lines:
            parts.append("\n".join([f"## {benchmark}", "", _TABLE, *lines, ""]))
        if tables := _comparisons([result for result in figures if result.compared]):
            parts.append("\n\n".join([_COMPARISONS.format(benchmark), *tables]) + "\n")
    if missing := sorted(set(known) - results.keys()):
        parts.append("\n".join(["## Not measured yet", "", *(f"- `{name}`" for name in missing), ""]))
    return "\n".join(parts)


def _row(result: Result) -> str:
    return _cells(
        _name(result.figure.partition(".")[2], [result]), f"{result.value:.4g}", str(result.goal), result.unit,
        ("met" if result.met else "**missed**") + _during(result), _origin(result.measured),
    )  # fmt: skip


def _comparisons(results: Sequence[Result]) -> list[str]:
    """Tables of the rows that have the same columns in one unit; other rows have a line for each of their columns."""
    rows: dict[str, dict[str, Result]] = {}
    for result in results:
        row, _, column = result.figure.partition(".")[2].rpartition(".")
        rows.setdefault(row, {})[column] = result
    alike: dict[tuple[frozenset[str], frozenset[str]], list[str]] = {}
    for row, columns in rows.items():
        alike.setdefault((frozenset(columns), frozenset(result.unit for result in columns.values())), []).append(row)
    tables = []
    for (_, units), names in alike.items():
        found = {name: rows[name] for name in names}
        # The first heading of a table names the unit of all of its columns.
        is_wide = len(names) > 1 and len(units) == 1
        tables.append(_table(next(iter(units)), found) if is_wide else _upright(found))
    return tables


def _table(unit: str, rows: Mapping[str, Mapping[str, Result]]) -> str:
    columns = list(next(iter(rows.values())))
    lines = [_cells(unit, *(column.replace("_", " ") for column in columns), "measured")]
    lines.append("|---" * (len(columns) + 2) + "|")
    for name, found in rows.items():
        measured = dict.fromkeys(_origin(result.measured) for result in found.values())
        values = (_with_interval(found[column]) for column in columns)
        lines.append(_cells(_name(name, list(found.values())), *values, "; ".join(measured)))
    return "\n".join(lines)


def _upright(rows: Mapping[str, Mapping[str, Result]]) -> str:
    lines = ["| figure | value | unit | measured |\n|---|---|---|---|"]
    for result in (result for row in rows.values() for result in row.values()):
        name = _name(result.figure.partition(".")[2], [result])
        lines.append(_cells(name, _with_interval(result), result.unit, _origin(result.measured)))
    return "\n".join(lines)


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _name(figure: str, results: Sequence[Result]) -> str:
    return figure.replace("_", " ") + (" *(simulated)*" if all(result.simulated for result in results) else "")


def _with_interval(result: Result) -> str:
    interval = result.settings.get(INTERVAL)
    return f"{result.value:.4g}" + (f" ({interval})" if interval else "")


def _during(result: Result) -> str:
    """The other load of the machine during the measurement of this figure, or otherwise during the whole run."""
    cores = result.settings.get("others_cores", result.measured.others_cores) or 0
    return f", while others used {cores:.1f} cores" if cores >= 0.1 else ""


def _origin(measured: Origin) -> str:
    return f"{measured.date}, `{measured.commit[:7]}`" + ("\\*" if measured.of_publication else "")


def render() -> str:
    """The page from the stored results."""
    return page(load(), benchmarks())


def main() -> None:
    PAGE.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
