"""Measured figures in the text of pages are stored results, rounded."""

from __future__ import annotations

import re

import pytest

from benchmarks.common.results import Result, load
from tests.docs.pages import DOCS
from tests.docs.test_readme_figures import rounded

# Page, words before and after a number, the figure that it is.
STATED = [
    ("architecture", r"Arrow Flight costs (\S+) times the CPU time per call", "calls.tcp_per_cpu_second_to_flight"),
    ("deduplication", r"a faster reader: (\S+) times the rows", "dedup_reader.at_rest.than_clustered"),
    ("deduplication", r"\((\S+) times those of a plain reader", "dedup_reader.at_rest.rows"),
    *(
        ("deduplication", rf"^\| {shards} \|{column}", f"dedup_storage.{form}_{shards}_shards")
        for shards in (1, 4, 16, 64)
        for form, column in (("log", r" (\d\.\d)\D.*\|.*\|$"), ("landed", r"[^|]*\| (\d\.\d)[^|]*\|$"))
    ),
    *(
        ("simulator", rf"\| {place} of {role}s \|.*\| (\d+) \|$", f"job_completion_time.mixed.{role}_{what}_in_use")
        for role in ("worker", "server")
        for place, what in (("cores", "cpu"), ("memory", "memory"))
    ),
]


def found(figure: str) -> Result:
    [result] = [result for result in load()[figure.partition(".")[0]] if result.figure == figure]
    return result


def written(page: str, words: str) -> str:
    [number] = re.findall(words, (DOCS / f"{page}.md").read_text(encoding="utf-8"), re.MULTILINE)
    return str(number)


@pytest.mark.parametrize(("page", "words", "figure"), STATED, ids=[each[2] for each in STATED])
def test_a_stated_figure_equals_the_measurement(page: str, words: str, figure: str) -> None:
    number = written(page, words)
    assert number == rounded(str(found(figure).value), number)


@pytest.mark.parametrize(("place", "role", "what"), [
    (place, role, what) for role in ("worker", "server") for place, what in (("cores", "cpu"), ("memory", "memory"))
])  # fmt: skip
def test_the_share_in_use_by_hand_is_that_of_the_same_simulations(place: str, role: str, what: str) -> None:
    number = written("simulator", rf"\| {place} of {role}s \|.*\| (\d+) \| \d+ \|$")
    by_hand = found(f"job_completion_time.mixed.{role}_{what}_in_use").settings["by_hand_%"]
    assert number == rounded(str(by_hand), number)
