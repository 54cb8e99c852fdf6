"""The command line `elastrec`: thin commands over the life cycle, data and cluster rooms.

Only arguments, tables and exit codes belong here. 0: done, 1: the job failed, 2: bad input.
"""

from elastrec.platform.cli.app import main

__all__ = ["main"]
