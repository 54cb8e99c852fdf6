"""`python -m elastrec.trainers.worker`: one worker pod, from its environment to its exit code.

Exit codes: 0 ordered to stop; 1 an error that another process may not meet; 2 an error of the job itself (bad data,
a bug in the user's model, a refused token), which a new worker would only meet again.
"""

from __future__ import annotations

import os
import sys

from elastrec.trainers.threads import prepare_process

# Before numpy and torch are imported: they read these settings once.
prepare_process(os.environ, sys.orig_argv)

from elastrec.platform.specs.errors import ElastrecError  # noqa: E402
from elastrec.trainers.imports import postpone_torchrec, without_collector  # noqa: E402
from elastrec.trainers.worker.identity import Identity  # noqa: E402


def main() -> int:
    """Reads the pod's environment before torch is loaded; returns the exit code."""
    try:
        identity = Identity.read()
    except ElastrecError as error:
        sys.stderr.write(f"the worker cannot start: {error}\n")
        return 2
    postpone_torchrec()
    with without_collector():
        from elastrec.trainers.worker.process import run_worker

    return run_worker(identity)


if __name__ == "__main__":
    sys.exit(main())
