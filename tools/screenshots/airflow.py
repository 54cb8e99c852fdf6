"""Screenshots of Airflow: the page of a job that trains, and the graph of its DAG run."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Browser, Page, expect

from elastrec.operators import settings
from tools.stack.services import ServiceStack

_WIDTH, _HEIGHT = 1300, 1000
_WAIT_MILLISECONDS = 90_000


def shoot_job(stack: ServiceStack, browser: Browser, folder: Path, job_id: str) -> Path:
    """`airflow_job.png`: the live page of a job."""
    page = _logged_in(stack, browser)
    try:
        page.goto(f"{stack.airflow_url}/elastrec/jobs/{quote(job_id, safe='')}")
        expect(page.get_by_text(job_id).first).to_be_visible()
        return _save(page, folder / "airflow_job.png")
    finally:
        page.close()


def shoot_run(stack: ServiceStack, browser: Browser, folder: Path, run_id: str) -> Path:
    """`airflow_run.png`: the tasks of a DAG run as a graph."""
    page = _logged_in(stack, browser)
    try:
        page.goto(f"{stack.airflow_url}/dags/{settings.DAG_ID}/runs/{quote(run_id, safe='')}")
        expect(page.get_by_text("offline_phase").first).to_be_visible()
        return _save(page, folder / "airflow_run.png")
    finally:
        page.close()


def _logged_in(stack: ServiceStack, browser: Browser) -> Page:
    page = browser.new_page(viewport={"width": _WIDTH, "height": _HEIGHT})
    page.set_default_timeout(_WAIT_MILLISECONDS)
    expect.set_options(timeout=_WAIT_MILLISECONDS)
    page.goto(stack.log_in_url)
    return page


def _save(page: Page, file: Path) -> Path:
    # Charts and graphs are drawn after they are there.
    page.wait_for_timeout(4000)
    page.screenshot(path=str(file))
    return file
