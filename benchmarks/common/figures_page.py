"""The docs' page of figures, from the kept results alone: goals, met or missed, simulated or not, and of which code.

python -m benchmarks.common.figures_page
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.common.names import benchmarks
from benchmarks.common.results import ROOT, Origin, Result, load

PAGE = ROOT / "docs" / "figures.md"
_HEAD = """# Figures

What is claimed, measured by `benchmarks/` on a machine of two cores; with goals, also where they are missed. Every
figure is one of its own run: a ratio against a peer or a baseline that took turns with it, the median of the rounds.
*Simulated* ones come from the [simulator](simulator.md). `make bench` measures all of them, `python -m benchmarks NAME`
one, with its settings and what else it found. `--save` keeps the results in `benchmarks/results`, from which
`python -m benchmarks.common.figures_page` writes this page.

Beside each figure stand the day on which it was measured and the commit of the code. Where they have a \\*, they are
those of the change that published the figure: which code had been measured was not kept.
"""
_TABLE = "| figure | value | goal | unit | | measured |\n|---|---|---|---|---|---|"


def page(results: Mapping[str, Sequence[Result]], known: Iterable[str]) -> str:
    """Figures that have a goal, by benchmark, and which of the known benchmarks have no result."""
    parts = [_HEAD]
    for benchmark, figures in sorted(results.items()):
        lines = [_row(result) for result in figures if result.goal is not None]
        if lines:
            parts.append("\n".join([f"## {benchmark}", "", _TABLE, *lines, ""]))
    if missing := sorted(set(known) - results.keys()):
        parts.append("\n".join(["## Not measured yet", "", *(f"- `{name}`" for name in missing), ""]))
    return "\n".join(parts)


def _row(result: Result) -> str:
    cells = (
        result.figure.partition(".")[2].replace("_", " ") + (" *(simulated)*" if result.simulated else ""),
        f"{result.value:.4g}",
        str(result.goal),
        result.unit,
        ("met" if result.met else "**missed**") + _during(result),
        _origin(result.measured),
    )
    return f"| {' | '.join(cells)} |"


def _during(result: Result) -> str:
    """What else the machine did, as it was while this figure was measured, or else in the whole run."""
    cores = result.settings.get("others_cores", result.measured.others_cores) or 0
    return f", while others used {cores:.1f} cores" if cores >= 0.1 else ""


def _origin(measured: Origin) -> str:
    return f"{measured.date}, `{measured.commit[:7]}`" + ("\\*" if measured.of_publication else "")


def render() -> str:
    """The page as today's results have it."""
    return page(load(), benchmarks())


def main() -> None:
    PAGE.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
