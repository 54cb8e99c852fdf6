"""docs/command_line.md: all commands, from click. `python -m tests.docs.command_line_page` generates it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from elastrec.platform.cli.app import root

PAGE = Path(__file__).resolve().parents[2] / "docs" / "command_line.md"
_WIDTH = 100
INTRODUCTION = """# The command line

`elastrec COMMAND --help` describes a command. With `--output json` the last line of standard output is one
JSON value; everything else goes to standard error. Exit codes: 0 done, 1 the job or the command failed, 2
bad input, 130 stopped by Ctrl-C, 141 the reader of the output has ended (`elastrec schema | head -1`).

| variable | what it sets |
|---|---|
| `ELASTREC_HOME` | the platform's own folder, default `~/.elastrec`; only its owner can read it |
| `ELASTREC_CLUSTER` | JSON file of a cluster other than the local one |
| `ELASTREC_TLS` | folder with `ca.pem`, `tls.crt`, `tls.key` for the node agent, see [security](security.md) |
| `ELASTREC_WORK_URI` | folder of manifests, logs and relative checkpoint stores, default in `ELASTREC_HOME` |
| `MLFLOW_TRACKING_URI` | tracking server, default an SQLite file in `ELASTREC_HOME` |

This page is written by `python -m tests.docs.command_line_page` from the commands themselves.
"""


def render() -> str:
    """The page."""
    lines = [INTRODUCTION]
    for name, help_text in _commands(root, "elastrec", None):
        lines += [f"## `{name}`", "", "```text", help_text, "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def _commands(command: click.Command, name: str, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    """(name, help) of a command and of all below it, in their order."""
    context = click.Context(command, info_name=name.rpartition(" ")[2], parent=parent, **command.context_settings)
    context.max_content_width = context.terminal_width = _WIDTH
    # click keeps the option of the command's first call; called without its parents it has no -h.
    command._help_option = None
    yield name, "\n".join(line.rstrip() for line in context.get_help().splitlines())
    if isinstance(command, click.Group):
        for part in command.list_commands(context):
            below = command.get_command(context, part)
            assert below is not None
            yield from _commands(below, f"{name} {part}", context)


def main() -> None:
    PAGE.write_text(render())


if __name__ == "__main__":
    main()
