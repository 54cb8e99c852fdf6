"""A screenshot of Airflow: the page of a job that trains."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Browser, Page, expect

from tools.screenshots.saving import save
from tools.stack.services import ServiceStack

_WIDTH, _HEIGHT = 1300, 1000
_WAIT_MILLISECONDS = 90_000


def shoot_job(stack: ServiceStack, browser: Browser, folder: Path, job_id: str) -> Path:
    """`airflow_job.png`: the live page of a job."""
    page = _logged_in(stack, browser)
    try:
        page.goto(f"{stack.airflow_url}/elastrec/jobs/{quote(job_id, safe='')}")
        expect(page.get_by_text(job_id).first).to_be_visible()
        return save(page, folder / "airflow_job.png")
    finally:
        page.close()


def _logged_in(stack: ServiceStack, browser: Browser) -> Page:
    page = browser.new_page(viewport={"width": _WIDTH, "height": _HEIGHT})
    page.set_default_timeout(_WAIT_MILLISECONDS)
    expect.set_options(timeout=_WAIT_MILLISECONDS)
    page.goto(stack.log_in_url)
    return page
