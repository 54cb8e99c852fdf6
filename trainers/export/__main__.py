"""`python -m elastrec.trainers.export`: the evaluator pod.

Reads `export.json` among its files; the last line of its output is `RESULT ` and the result as JSON. Exit codes: 0
done, 2 the model must not be used (it differs from the trained one, its code fails, or its inputs are wrong), 3 MLflow
or its artifact store is away, 1 other errors, for which a retry may help.
"""

from __future__ import annotations

import os
import sys

from elastrec.trainers.threads import prepare_process

# Before numpy and torch are imported: they read these settings once.
prepare_process(os.environ, sys.orig_argv)

from elastrec.trainers.imports import postpone_torchrec, without_collector  # noqa: E402

postpone_torchrec()
with without_collector():
    from elastrec.trainers.export.pod import main

if __name__ == "__main__":
    sys.exit(main())
