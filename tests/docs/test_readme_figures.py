"""Every figure in the README's table of comparisons is a stored result, rounded."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_EVEN, Decimal

import pytest

from tests.docs.pages import DOCS, ROOT

_NUMBER = re.compile(r"\d+(?:\.\d+)?")

# The first words of a README row → the section and the figures of docs/figures.md that its numbers are.
MEASURED = {
    "TensorFlow's": ("parameter_server_peer", ["wide and deep"]),
    "torchrec's reader": ("reader", ["criteo tsv to torchrec batch 512", "criteo tsv to torchrec batch 4096"]),
    "Arrow Flight": ("calls", ["tcp per cpu second to flight"]),
    "the same sequence model": ("dedup_worker", ["bst.end to end"]),
    "jobs sized by hand": ("job_completion_time", ["mixed.three stage warm against by hand.median *(simulated)*"]),
}
# The same for docs/fault_campaign.md, with its rows.
CAMPAIGN = {"random faults": ["faults", "runs", "lost samples"]}


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in text.splitlines() if line[:2] == "| "]


def comparisons() -> list[list[str]]:
    """Rows of the table under the architecture: against what, figure."""
    table = (ROOT / "README.md").read_text().partition("| against | figure |\n")[2].partition("\n\n")[0]
    return cells(table)


def section(name: str) -> dict[str, str]:
    """Values by figure in one section of docs/figures.md."""
    text = (DOCS / "figures.md").read_text().partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    return {row[0]: row[1] for row in cells(text)}


def rounded(value: str, as_written: str) -> str:
    """A measured value without its sign, with as many decimal places as a text has."""
    return str(abs(Decimal(value)).quantize(Decimal(as_written), ROUND_HALF_EVEN))


@pytest.mark.parametrize("row", comparisons(), ids=lambda row: row[0][:24])
def test_a_comparison_in_the_readme_equals_the_measurement(row: list[str]) -> None:
    against, figure = row
    if (words := next((words for words in CAMPAIGN if words in against), None)) is not None:
        found = {row[0]: row[1] for row in cells((DOCS / "fault_campaign.md").read_text())}
        # The link's target has no number.
        written, names = _NUMBER.findall(against) + _NUMBER.findall(figure), CAMPAIGN[words]
    else:
        benchmark, names = MEASURED[next(words for words in MEASURED if against.startswith(words))]
        found, written = section(benchmark), _NUMBER.findall(figure)
    assert written == [rounded(found[name], text) for name, text in zip(names, written, strict=True)]
    assert ("% less" in figure) == any(found[name].startswith("-") for name in names)


def test_every_claim_has_its_row_in_the_readme() -> None:
    assert len(comparisons()) == len(MEASURED) + len(CAMPAIGN)
