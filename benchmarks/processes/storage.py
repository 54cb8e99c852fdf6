"""A process with a server of its own and one worker's requests, in the benchmark of a server's storage.

    python -m benchmarks.processes.storage ROWS

A line {"seconds": …} is answered with the pulls of this time.
"""

from __future__ import annotations

import logging
import sys

import structlog

from benchmarks.common.child import serve
from benchmarks.servers.storage import Server

if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    server = Server(int(sys.argv[1]))
    server.fill()
    serve(lambda request: server.work_for(request["seconds"], 1), {})
