"""The commands of the docs are run as they stand there, and print what the pages show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import DOCS, Shell, follow
from tests.processes import Elastrec, processes_of, wait_for

RUN_PAGES = [DOCS / "security.md", DOCS / "tutorial.md"]


@pytest.mark.parametrize("page", RUN_PAGES, ids=lambda page: page.name)
def test_a_reader_who_follows_a_page_sees_what_it_shows(page: Path, tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "here"
    folder.mkdir()
    try:
        with Shell(folder, home) as shell:
            follow(page, shell)
    finally:
        if (home / "agent").is_dir():
            Elastrec(home).close()
        wait_for(lambda: not processes_of(home), 20, f"no process left: {processes_of(home)}")
