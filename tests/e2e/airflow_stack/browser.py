"""User actions on the pages of Airflow and MLflow, in Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote

from playwright.sync_api import FrameLocator, Page, expect, sync_playwright

from elastrec.operators.settings import DAG_ID
from tools.stack.services import ServiceStack

_LOOK_MILLISECONDS = 90_000


def has_chromium() -> bool:
    return shutil.which("chromium") is not None


@contextmanager
def open_dag(stack: ServiceStack) -> Iterator[Page]:
    """The DAG's page, as the demo opens it."""
    expect.set_options(timeout=_LOOK_MILLISECONDS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 1300})
        page.set_default_timeout(_LOOK_MILLISECONDS)
        page.goto(stack.log_in_url)
        yield page
        browser.close()


def trigger_by_form(stack: ServiceStack, job_file: Path) -> str:
    """Fills in the form of the DAG and sends it; returns the id of the run whose page comes up."""
    with open_dag(stack) as page:
        page.get_by_role("button", name="Trigger").first.click()
        form = page.get_by_role("dialog")
        for words in ("Job file", "Inline job", "Days to train on", "Changes to the job"):
            expect(form.get_by_text(words, exact=True).first).to_be_visible()
        field = form.locator("input[name='element_job_file']")
        expect(field).to_have_value("")
        field.fill(str(job_file))
        field.press("Tab")
        # Filled in is the present moment, whose days are not in the log; without it the run takes what is there.
        logical_date = form.get_by_test_id("datetime-input").first
        logical_date.click()
        page.get_by_placeholder("YYYY/MM/DD").fill("")
        expect(logical_date).not_to_contain_text(":")
        form.get_by_text("Job file", exact=True).first.click()
        form.get_by_role("button", name="Trigger").click()
        page.wait_for_url("**/runs/manual__*")
        return unquote(page.url.rpartition("/runs/")[2].partition("/")[0].partition("?")[0])


def open_mlflow_from_task(stack: ServiceStack, page: Page, run_id: str, task_id: str) -> Page:
    """Follows the task's link; the page of the MLflow run comes up in a tab of its own."""
    task = f"{stack.airflow_url}/dags/{DAG_ID}/runs/{quote(run_id, safe='')}/tasks/{task_id}"
    page.goto(task)
    expect(page.get_by_text("Succeeded").first).to_be_visible()
    page.goto(f"{task}/details")
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="MLflow run").click()
    return opened.value


def shown_metric(page: Page, name: str) -> float:
    """The value of a metric in the table of an MLflow run's page."""
    page.get_by_placeholder("Search metrics").fill(name)
    row = page.get_by_role("row", name=name).first
    expect(row).to_be_visible()
    return float(row.get_by_role("cell").nth(1).inner_text())


def shown_artifact(page: Page, name: str) -> str:
    """The text of an artifact in an MLflow run's page."""
    page.get_by_role("tab", name="Artifacts").click()
    page.get_by_text(name, exact=True).first.click()
    # The viewer comes up empty and is filled later.
    text = page.locator("pre, code, .text-area-border-box").filter(has_text="goodput").first
    expect(text).to_be_visible()
    return text.inner_text()


def open_training_jobs(stack: ServiceStack, page: Page) -> FrameLocator:
    """The page of all jobs, reached by Airflow's own menu; it lies in a frame."""
    page.get_by_role("button", name="Browse").first.click()
    page.get_by_role("menuitem", name="Training jobs").click()
    page.wait_for_url("**/training-jobs**")
    return page.frame_locator("iframe")
