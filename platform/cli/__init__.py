"""The command line `elastrec`: thin commands that call the rooms of jobs, data and clusters.

Only arguments, tables and exit codes belong here. Exit codes: see `app`.
"""

from __future__ import annotations

import sys

EXIT_INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> None:
    """Entry point; also Ctrl-C during the imports ends it without a traceback."""
    try:
        from elastrec.platform.cli.app import main as run
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(EXIT_INTERRUPTED)
    run(arguments)


__all__ = ["EXIT_INTERRUPTED", "main"]
