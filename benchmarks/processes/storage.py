"""A process with servers of its own and their workers' requests, in the benchmark of a server's storage.

    python -m benchmarks.processes.storage ROWS CORES [CORES …]

There is a server for each number of cores. A line {"cores": …, "seconds": …} is answered with the pulls of that server
in this time, from one worker for each core.
"""

from __future__ import annotations

import logging
import sys

import structlog

from benchmarks.common.child import serve
from benchmarks.servers.storage import Server

if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    rows, *numbers = map(int, sys.argv[1:])
    servers = {cores: Server(rows, cores=cores) for cores in numbers}
    for server in servers.values():
        server.fill()
    serve(lambda request: servers[request["cores"]].work_for(request["seconds"], request["cores"]), {})
