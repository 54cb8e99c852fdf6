"""Starts the agents of several nodes, and registers their backend while they run."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.common.nodes.backend import NAME, NodesConfig
from elastrec.platform.clusters.local import start_agent, stop_agent
from elastrec.platform.clusters.pods import PodSize

_ROOT = Path(__file__).resolve().parents[3]


@contextlib.contextmanager
def offered(folder: Path, name: str, value: str) -> Iterator[None]:
    """Registers a backend as an entry point, as an installed package does, for this process and its children.

    Pods inherit `PYTHONPATH` from their agent.

    Args:
        folder: is created.
        name, value: of the entry point; the value names a module of this repository.
    """
    package = f"elastrec-{name}"
    information = folder / f"{package.replace('-', '_')}-0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0\n")
    (information / "entry_points.txt").write_text(f"[elastrec.clusters]\n{name} = {value}\n")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), str(_ROOT), *([before] if before else [])])
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


@contextlib.contextmanager
def started_nodes(home: Path, sizes: Mapping[str, PodSize], limits: str = "auto") -> Iterator[NodesConfig]:
    """Node agents, each in a folder of its name in `home`; they and their pods are removed afterwards.

    Args:
        sizes: by node, in the order in which nodes are filled.
        limits: `auto`, or `threads` for no cgroups.
    """
    with offered(home / "packages", NAME, "benchmarks.common.nodes.backend:BACKEND"), contextlib.ExitStack() as stack:
        agents = {}
        for name, size in sizes.items():
            stack.callback(stop_agent, home / name)
            cluster = start_agent(
                home / name, cores=size.cores, memory_bytes=size.memory_bytes, node=name, limits=limits
            )
            stack.callback(cluster.close)
            agents[name] = cluster.config
        yield NodesConfig(agents=agents)
