"""`python -m elastrec.platform.cli`, the same as `elastrec`."""

from elastrec.platform.cli import main

main()
