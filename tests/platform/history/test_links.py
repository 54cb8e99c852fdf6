"""The targets of links to MLflow, in a browser."""

from __future__ import annotations

import shutil

import pytest
from playwright.sync_api import expect, sync_playwright

from elastrec.platform.history import History
from elastrec.platform.history.connection import experiments_url
from elastrec.platform.jobs.types import Allocation
from tests.platform.history.conftest import MakePrepared, TrackingServer

pytestmark = pytest.mark.services

_LOOK_MILLISECONDS = 90_000


@pytest.mark.browser
def test_links_open_the_run_and_the_experiments(
    tracking_server: TrackingServer, history: History, make_prepared: MakePrepared, allocation: Allocation
) -> None:
    if not (chromium := shutil.which("chromium")):
        pytest.skip("left out: there is no Chromium on this machine (apt-get install chromium)")
    run_id = history.start_run(make_prepared(), allocation)
    expect.set_options(timeout=_LOOK_MILLISECONDS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(_LOOK_MILLISECONDS)
        page.goto(history.run_url(run_id))
        expect(page.get_by_role("heading", name="clicks 2026-01-01")).to_be_visible()
        expect(page.get_by_text(run_id).first).to_be_visible()
        page.goto(history.job_url("clicks-20260101"))
        expect(page.get_by_role("link", name="clicks 2026-01-01").first).to_be_visible()
        page.goto(experiments_url(tracking_server.uri))
        expect(page.get_by_role("heading", name="Experiments")).to_be_visible()
        expect(page.get_by_text("Welcome to MLflow")).to_have_count(0)
        browser.close()
