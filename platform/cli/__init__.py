"""The command line `elastrec`: thin commands that call the rooms of jobs, data and clusters.

Only arguments, tables and exit codes belong here. Exit codes: see `app`.
"""

from elastrec.platform.cli.app import main

__all__ = ["main"]
