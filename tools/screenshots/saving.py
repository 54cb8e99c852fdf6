"""Saves a page as a picture."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page

_DRAWING_MILLISECONDS = 3000


def save(page: Page, file: Path) -> Path:
    """Saves the visible part of the window as a PNG file."""
    # Charts are drawn after their elements exist.
    page.wait_for_timeout(_DRAWING_MILLISECONDS)
    page.screenshot(path=str(file))
    return file
