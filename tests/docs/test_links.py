"""Links in the docs are valid, every page is linked, and all commands and options in code blocks exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from elastrec.platform.cli.app import root
from tests.docs.job_file_page import anchor
from tests.docs.pages import DOCS, ROOT, missing_lines, steps_of

PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
_LINK = re.compile(r"(?<!\\)\[[^\]]+\]\(([^)\s]+)\)")
_CODE = re.compile(r"`[^`\n]+`")
_CALL = re.compile(r"(?:^|\s)elastrec (?=[a-z-])(.*)")
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[str]:
    """Targets inside the repository, as the page writes them."""
    text = _CODE.sub("", _FENCED.sub("", page.read_text(encoding="utf-8")))
    return [target for target in _LINK.findall(text) if "://" not in target]


def anchors(page: Path) -> set[str]:
    return {anchor(heading) for heading in re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for link in links(page):
        name, _, place = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (place and place not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_page_is_in_the_index() -> None:
    named = {link.partition("#")[0] for link in links(DOCS / "README.md")}
    assert {page.name for page in DOCS.glob("*.md")} - named == {"README.md"}


def calls(page: Path) -> Iterator[list[str]]:
    """The calls of `elastrec` in the shell blocks of a page, as words after the name."""
    for kind, body in _FENCED.findall(page.read_text(encoding="utf-8")):
        if kind not in ("bash", "console"):
            continue
        for line in body.replace("\\\n", " ").splitlines():
            found = _CALL.search(line.partition("#")[0])
            if found:
                words = shlex.split(found[1])
                yield words[: next((at for at, word in enumerate(words) if word in ("|", "||", "&&", ">")), None)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_in_a_page_exists(page: Path) -> None:
    for words in calls(page):
        command: click.Command = root
        context = click.Context(root)
        rest = list(words)
        while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
            found = command.get_command(context, rest[0])
            assert found is not None, words
            command, rest = found, rest[1:]
        known = {option for parameter in command.params for option in parameter.opts + parameter.secondary_opts}
        unknown = [word for word in rest if word.startswith("-") and word.partition("=")[0] not in known | {"--help"}]
        assert unknown == [], words


def test_the_readme_has_calls_to_check() -> None:
    assert len(list(calls(ROOT / "README.md"))) >= 5


def test_lines_of_a_page_must_be_in_the_order_of_the_output() -> None:
    output = "one  1.5 s\ntwo\nthree\n"
    assert missing_lines("one … s\nthree\n", output) == []
    assert missing_lines("three\none … s\n", output) == ["one … s"]
    assert missing_lines("two or more\n", output) == ["two or more"]


def test_every_marked_block_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- file: a/b.txt -->\n```text\nx\n```\n\n<!-- run -->\n```bash\nls\n```\n\n```bash\nrm\n```\n")
    assert [(step.kind, step.name, step.text, step.line) for step in steps_of(page)] == [
        ("file", "a/b.txt", "x\n", 1), ("run", "", "ls\n", 6),
    ]  # fmt: skip
    for one in DOCS.glob("*.md"):
        marks = re.findall(r"^<!-- (?:run|shows|file:)", one.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(marks) == len(steps_of(one)), one.name
