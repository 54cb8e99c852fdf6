"""The commands of the docs are run literally, in a fresh environment, and print what the pages show."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, Shell, follow
from tests.processes import Elastrec, processes_of, wait_for

pytestmark = pytest.mark.services

RUN_PAGES = [ROOT / "README.md", DOCS / "security.md", DOCS / "tutorial.md"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", RUN_PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    home, folder = tmp_path / "reader", tmp_path / "here"
    home.mkdir()
    folder.mkdir()
    # The checkout's environment, which the README activates.
    (folder / ".venv").symlink_to(sys.prefix)
    try:
        with Shell(folder, home) as shell:
            follow(page, shell)
    finally:
        # A page that went wrong did not come to its last step. It names a home of its own, or uses the default one.
        for state in (home / ".elastrec", folder / "home"):
            if (state / "agent").is_dir():
                Elastrec(state).close()
        wait_for(lambda: not processes_of(tmp_path), 20, f"no process left: {processes_of(tmp_path)}")
