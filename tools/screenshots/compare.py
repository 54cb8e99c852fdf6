"""Screenshots of MLflow: the first charts of a job's run, and two of its days side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from playwright.sync_api import Browser, Page, expect

from elastrec.platform.history import History, JobFilter
from elastrec.platform.specs.metrics import Phase
from tools.screenshots.saving import save

_WIDTH, _HEIGHT = 1300, 1000
_COMPARE_HEIGHT = 1650
_WAIT_MILLISECONDS = 60_000


class HasMlflow(Protocol):
    """A running stack, such as `ServiceStack`."""

    @property
    def mlflow_url(self) -> str: ...


def shoot(stack: HasMlflow, browser: Browser, folder: Path, experiment: str = "elastrec") -> list[Path]:
    """`mlflow_run.png` and `mlflow_compare.png` of the two newest days of a job that has trained at least two.

    Args:
        browser: Chromium.
        folder: exists.

    Raises:
        ValueError: no job of the experiment has succeeded twice.
    """
    page = browser.new_page(viewport={"width": _WIDTH, "height": _HEIGHT})
    page.set_default_timeout(_WAIT_MILLISECONDS)
    history = History(stack.mlflow_url, experiment)
    newer, older = _two_days(history)
    experiment_id = history.run_url(newer).partition("/experiments/")[2].partition("/")[0]
    try:
        return [
            _shoot_run(page, f"{stack.mlflow_url}/#/experiments/{experiment_id}/runs/{newer}", folder),
            _shoot_compare(page, stack.mlflow_url, experiment_id, (older, newer), folder),
        ]
    finally:
        page.close()


def _two_days(history: History) -> tuple[str, str]:
    """The runs of the newest and the second newest day of one job."""
    newest: dict[str, list[str]] = {}
    for record in history.job_records(JobFilter(phases=(Phase.SUCCEEDED,))):
        runs = newest.setdefault(record.job_name, [])
        runs.append(record.run_id)
        if len(runs) == 2:
            return runs[0], runs[1]
    raise ValueError("no job has succeeded twice; train a second day first")


def _shoot_run(page: Page, url: str, folder: Path) -> Path:
    page.goto(f"{url}/model-metrics?workflowType=machine_learning")
    expect(page.get_by_text("curves", exact=True).first).to_be_visible()
    expect(page.locator(".main-svg").first).to_be_visible()
    _close_assistant(page)
    return save(page, folder / "mlflow_run.png")


def _shoot_compare(page: Page, url: str, experiment_id: str, runs: tuple[str, str], folder: Path) -> Path:
    asked = f"runs={quote(json.dumps(list(runs)))}&experiments={quote(json.dumps([experiment_id]))}"
    page.goto(f"{url}/#/compare-runs?{asked}&workflowType=machine_learning")
    expect(page.get_by_text("evaluation/auc_gain").first).to_be_attached()
    _close_assistant(page)
    for section in ("Visualizations", "Artifacts"):
        page.get_by_text(section, exact=True).click()
    for show_only_what_differs in page.get_by_role("switch").all():
        show_only_what_differs.click()
    # The page has its own scroll area, and a picture contains only the visible part.
    page.set_viewport_size({"width": _WIDTH, "height": _COMPARE_HEIGHT})
    page.get_by_text("Comparing 2 Runs").first.scroll_into_view_if_needed()
    return save(page, folder / "mlflow_compare.png")


def _close_assistant(page: Page) -> None:
    """MLflow opens a panel for its assistant beside the page."""
    close = page.get_by_role("button", name="Close").last
    if close.is_visible():
        close.click()
