"""A cluster for trials: `python -m tools.yarn` prints its address and runs until Ctrl-C.

`python -m tools.yarn fetch` fetches the jars and starts nothing.
"""

from __future__ import annotations

import contextlib
import signal
import sys

from tools.jars import JarsError
from tools.yarn.cluster import JARS, YarnCluster, YarnClusterError

if __name__ == "__main__":
    if missing := JARS.missing_program():
        sys.exit(f"{missing} is not installed; a cluster needs Java 17 or above, and Maven to fetch it")
    try:
        if sys.argv[1:] == ["fetch"]:
            sys.stdout.write(f"{JARS.fetch()}\n")
            sys.exit()
        with YarnCluster() as cluster:
            sys.stdout.write(f"{cluster.url}\n{cluster.client_configuration}\n")
            sys.stdout.flush()
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
    except (JarsError, YarnClusterError) as error:
        sys.exit(str(error))
