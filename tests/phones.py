"""Pages and reports in a browser window with the width of a phone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, sync_playwright

WIDTH = 390
_STACKED = """
    () => [...document.querySelectorAll("table.stacked")].flatMap(table => {
        const names = [...table.rows[0].cells].map(cell => cell.textContent), problems = [];
        if (table.parentElement.scrollWidth > table.parentElement.clientWidth) problems.push("scrolls sideways");
        for (const cell of [...table.rows].slice(1).flatMap(row => [...row.cells])) {
            if (!cell.textContent) continue;
            const named = cell.dataset.column, column = names[cell.cellIndex];
            if (named !== undefined && named !== column)
                problems.push(`${named} stands in the column ${column}`);
            if (named !== undefined && getComputedStyle(cell, "::before").content !== JSON.stringify(named))
                problems.push(`${named} is not shown`);
            if (named === undefined && cell.cellIndex && column && cell.colSpan === 1)
                problems.push(`${cell.textContent} has no name of its column`);
            if (cell.clientWidth < innerWidth / 2)
                problems.push(`${cell.textContent} is ${cell.clientWidth} px wide`);
        }
        return problems.map(problem => `#${table.id}: ${problem}`);
    })
"""


@contextmanager
def phone() -> Iterator[Page]:
    """An empty page of WIDTH pixels; the test is left out where there is no Chromium."""
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("left out: there is no Chromium on this machine (apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser.new_page(viewport={"width": WIDTH, "height": 844})
        browser.close()


def stacked_tables(page: Page) -> list[str]:
    """The ids of the tables whose rows are shown as one line per cell.

    Raises:
        AssertionError: the page or a table scrolls horizontally, or a cell is not on the same line as the name of its
            column.
    """
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTH, "the page scrolls sideways"
    problems: list[str] = page.evaluate(_STACKED)
    assert problems == []
    ids: list[str] = page.evaluate('[...document.querySelectorAll("table.stacked")].map(table => table.id)')
    return ids
