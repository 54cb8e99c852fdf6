"""A control plane for trials.

    python -m tools.kubernetes build [--processes N]   builds its programs, prints their folder
    python -m tools.kubernetes                         starts it, prints a kubeconfig's path, runs until Ctrl-C

It has no nodes; `tests/spikes/kubernetes/node_agent.py` runs pods as processes of this machine.
"""

from __future__ import annotations

import argparse
import signal
import sys

from tools.kubernetes.build import BuildError, build
from tools.kubernetes.servers import Servers, ServersError

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("build", "run"), default="run")
    parser.add_argument("--processes", type=int, help="compilers at once (default: as many as there are cores)")
    arguments = parser.parse_args()
    try:
        folder = build(arguments.processes)
        if arguments.what == "build":
            sys.stdout.write(f"{folder}\n")
        else:
            with Servers(folder) as servers:
                sys.stdout.write(f"{servers.write_kubeconfig('admin')}\n")
                sys.stdout.flush()
                signal.sigwait({signal.SIGINT, signal.SIGTERM})
    except (BuildError, ServersError) as error:
        sys.exit(str(error))
