"""docs/bad_input.md: all cases with their messages. `python -m tests.bad_input.page` generates it."""

from __future__ import annotations

import html
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.bad_input import call_cases, data_cases, file_cases, model_cases, remote_cases
from tests.bad_input.caller import platform_at, refuse
from tests.bad_input.case import Case

CASES: list[Case] = [*file_cases.CASES, *data_cases.CASES, *model_cases.CASES, *call_cases.CASES, *remote_cases.CASES]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "bad_input.md"
INTRODUCTION = """# Wrong input and its error messages

All input on this page is refused before a pod starts, with exit code 2 and the message on standard error, and nothing
is created. All problems of a job file are shown at once. A bad row in the middle of a day is found during training:
`spec.data.bad_rows` sets whether the job then fails, or skips up to a number of bad rows, which are counted and shown.

`python -m tests.bad_input.page` generates this page from the tests that check the messages.
"""


def normalised(message: str, folder: Path, home: Path) -> str:
    """The message without what differs from machine to machine."""
    text = message.strip()
    text = text[text.index("Error: ") + len("Error: ") :] if "Error: " in text else text
    for path, name in ((folder, "FOLDER"), (home, "HOME"), (Path.cwd(), "HERE")):
        text = text.replace(str(path), name)
    text = re.sub(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+", "Traceback …\n", text)
    text = re.sub(r"user_code_\d+", "user_code", text)
    return text.rstrip()


def render(messages: Mapping[str, str]) -> str:
    """The text of the page.

    Args:
        messages: messages by title and group; see `key`.
    """
    lines = [INTRODUCTION]
    group = ""
    for case in CASES:
        if case.group != group:
            group = case.group
            lines.append(f"\n## {group}\n\n| input | message |\n|---|---|\n")
        text = re.sub(r"[|*\[]", r"\\\g<0>", html.escape(messages[key(case)], quote=False))
        lines.append(f"| {case.title} | {text.replace(chr(10), '<br>')} |\n")
    return "".join(lines)


def key(case: Case) -> str:
    return f"{case.group}: {case.title}"


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        home = root / "home"
        messages = {}
        with platform_at(home):
            for number, case in enumerate(CASES):
                folder = root / str(number)
                folder.mkdir()
                messages[key(case)] = normalised(refuse(case, folder, home).message, folder, home)
    PAGE.write_text(render(messages))


if __name__ == "__main__":
    main()
