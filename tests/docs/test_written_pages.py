"""Generated pages are up to date, and every field and option is described."""

from __future__ import annotations

import re

import click
import pytest

from elastrec.platform.cli.app import root
from tests.docs import command_line_page, job_file_page, mlflow_page


def test_the_reference_of_the_job_file_is_current() -> None:
    current = job_file_page.PAGE.read_text() == job_file_page.render()
    assert current, "write it anew: python -m tests.docs.job_file_page"


def test_the_reference_of_the_command_line_is_current() -> None:
    current = command_line_page.PAGE.read_text() == command_line_page.render()
    assert current, "write it anew: python -m tests.docs.command_line_page"


def test_the_metrics_on_the_page_about_mlflow_are_current() -> None:
    current = mlflow_page.PAGE.read_text() == mlflow_page.render()
    assert current, "write it anew: python -m tests.docs.mlflow_page"


def test_every_field_of_a_job_file_has_a_meaning() -> None:
    rows = [line for line in job_file_page.render().splitlines() if line.startswith("| `")]
    assert len(rows) > 80
    assert [row for row in rows if re.search(r"\|\s*\|$", row)] == []


@pytest.mark.parametrize("name", root.list_commands(click.Context(root)))
def test_every_command_has_a_description(name: str) -> None:
    command = root.get_command(click.Context(root), name)
    assert command is not None
    for one in (command, *getattr(command, "commands", {}).values()):
        assert one.help, one.name
