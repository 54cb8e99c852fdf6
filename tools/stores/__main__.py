"""`python -m tools.stores fetch` fetches the servers; `python -m tools.stores NAME` runs azure, gcs, hdfs or s3."""

from __future__ import annotations

import contextlib
import signal
import sys

from tools.jars import JarsError
from tools.stores.fetching import FetchError, fetch, missing
from tools.stores.servers import S3, Azure, Gcs, Hdfs, ServerError

_SERVERS = {"azure": (Azure, "connection"), "gcs": (Gcs, "endpoint"), "hdfs": (Hdfs, "address"), "s3": (S3, "endpoint")}

if __name__ == "__main__":
    try:
        match sys.argv[1:]:
            case ["fetch"]:
                fetch()
            case [name] if name in _SERVERS:
                if lacking := missing(name):
                    sys.exit(lacking)
                kind, attribute = _SERVERS[name]
                with kind() as server:
                    sys.stdout.write(f"{getattr(server, attribute)}\n")
                    sys.stdout.flush()
                    signal.signal(signal.SIGTERM, signal.default_int_handler)
                    with contextlib.suppress(KeyboardInterrupt):
                        signal.pause()
            case _:
                sys.exit(__doc__)
    except (FetchError, JarsError, ServerError) as error:
        sys.exit(str(error))
