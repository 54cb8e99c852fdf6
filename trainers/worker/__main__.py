"""`python -m elastrec.trainers.worker`: one worker pod, from its environment to its exit code.

Exit codes: 0 told to stop; 1 an error that another process may not meet; 2 an error of the job itself (bad data,
a bug in the user's model, a refused token), which a new worker would only meet again.
"""

from __future__ import annotations

import os
import sys

from elastrec.trainers.threads import prepare_process

# Before numpy and torch are imported: they read these settings once.
prepare_process(os.environ, sys.orig_argv)

from elastrec.trainers.worker.process import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
