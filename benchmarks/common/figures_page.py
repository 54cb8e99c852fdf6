"""The docs' page of figures, from what benchmarks printed: goals, met or missed, simulated or not. No word of praise.

for name in reader shards; do python -m benchmarks $name --output json > results/$name.json; done
python -m benchmarks.common.figures_page results/*.json > docs/figures.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_HEAD = """# Figures

What is claimed, measured by `benchmarks/` on a machine of two cores; with goals, also where they are missed. Every
figure is one of its own run: a ratio against a peer or a baseline that took turns with it, the median of the rounds.
*Simulated* ones come from the [simulator](simulator.md). `make bench` measures all of them, `python -m benchmarks NAME`
one, with its settings and what else it found; `python -m benchmarks.common.figures_page` writes this page.
"""


def page(documents: Iterable[Mapping[str, Any]]) -> str:
    """Figures that have a goal, by benchmark; documents as `Figure.document` makes them."""
    by_benchmark: dict[str, list[str]] = {}
    for each in documents:
        benchmark, _, name = each["figure"].partition(".")
        if each["goal"] is None:
            continue
        cells = (
            name.replace("_", " ") + (" *(simulated)*" if each["simulated"] else ""),
            f"{each['value']:.4g}",
            each["goal"],
            each["unit"],
            ("met" if each["met"] else "**missed**") + _during(each["settings"]),
        )
        by_benchmark.setdefault(benchmark, []).append(f"| {' | '.join(cells)} |")
    parts = [_HEAD]
    for benchmark in sorted(by_benchmark):
        lines = "\n".join(by_benchmark[benchmark])
        parts.append(f"## {benchmark}\n\n| figure | value | goal | unit | |\n|---|---|---|---|---|\n{lines}\n")
    return "\n".join(parts)


def _during(settings: Mapping[str, Any]) -> str:
    """What else the machine did: it changes figures of waits."""
    cores = settings.get("others_cores", 0)
    return f", while others used {cores:.1f} cores" if cores >= 0.1 else ""


if __name__ == "__main__":
    found = [document for file in sys.argv[1:] for document in json.loads(Path(file).read_text())]
    sys.stdout.write(page(found))
