"""The command line `elastrec`: thin commands that call the rooms of jobs, data and clusters.

Only arguments, tables and exit codes belong here. Exit codes: 0: done, 1: the job failed, 2: bad input.
"""

from elastrec.platform.cli.app import main

__all__ = ["main"]
