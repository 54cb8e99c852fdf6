"""`python -m tests.faults.live.many_changes [--count 100] [--seed 1]`: many changes of one real job.

Servers and workers are added and removed, servers move to new pods and get more or less memory; each change begins
after the previous one, while the job trains. At the end, every row was trained exactly once, processes that existed
during all changes use as much memory and as many threads and open files as after the first changes, and nothing of the
job is left on the node. Everything is drawn from the seed. Exit code 0: all of this is true.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from elastrec.platform.clusters.local.state_folder import StateFolder
from elastrec.platform.specs.metrics import Role
from tests.faults.campaign.job import BATCH_ROWS, ROWS
from tests.faults.campaign.leftovers import leftovers, shared_memory
from tests.faults.campaign.site import site_at
from tests.faults.live.jobs import PATIENCE_SECONDS, SERVERS, SLOW_SECONDS, WORKERS, LiveJob, live_job
from tests.processes import pod_processes, wait_for

MEMORY_BYTES = (512 * 2**20, 640 * 2**20, 768 * 2**20)
MOST_SERVERS, MOST_WORKERS = 4, 2
"""The node has room for them, and for the successor of one of the servers where there are fewer."""
_SECONDS_PER_CHANGE = 12.0
"""How long the job has to last, at least; it is hurried to its end after the last change."""
_EARLY, _LATE = slice(1, 5), slice(-4, None)
GROWTH, GROWTH_BYTES = 1.1, 16 * 2**20
"""What counts as flat: a tenth, and what the allocator may keep."""


@dataclass(frozen=True)
class Change:
    """What is asked for at once: shapes by their fields, or a server to be moved."""

    shape: dict[str, int]
    moves_server: bool = False


def draw(random_: random.Random, servers: int, workers: int, memory_bytes: int) -> Change:
    """The next change; never to what the job has already."""
    # A successor starts before the server that it is for has gone.
    moves = 0 if servers == MOST_SERVERS else 1
    weights = (4, 1, 2 * moves, moves, 2)
    kind = random_.choices(("servers", "workers", "move", "memory", "both"), weights)[0]
    other_servers = random_.choice([n for n in range(1, MOST_SERVERS + 1) if n != servers])
    other_workers = random_.choice([n for n in range(1, MOST_WORKERS + 1) if n != workers])
    match kind:
        case "servers":
            return Change({"parameter_servers": other_servers})
        case "workers":
            return Change({"workers": other_workers})
        case "both":
            return Change({"parameter_servers": other_servers, "workers": other_workers})
        case "memory":
            sizes = [size for size in MEMORY_BYTES if size != memory_bytes]
            return Change({"parameter_server_memory_bytes": random_.choice(sizes)}, moves_server=True)
    return Change({}, moves_server=True)


@dataclass(frozen=True)
class Use:
    """What a process holds."""

    rss_bytes: int
    threads: int
    files: int


@dataclass
class Watched:
    """Processes by `role pid`, looked at after each change."""

    uses: dict[str, list[Use]] = field(default_factory=dict)

    def look(self, processes: dict[str, psutil.Process]) -> None:
        for name, process in processes.items():
            with process.oneshot():
                use = Use(process.memory_info().rss, process.num_threads(), process.num_fds())
            self.uses.setdefault(f"{name} {process.pid}", []).append(use)

    def grown(self, changes: int) -> list[str]:
        """A sentence for each process of all changes that holds more at the end than after the first ones."""
        found = []
        for name, uses in self.uses.items():
            if len(uses) < changes:
                continue
            for kind, slack in (("rss_bytes", GROWTH_BYTES), ("threads", 2), ("files", 4)):
                early, late = (statistics.median(getattr(use, kind) for use in uses[part]) for part in (_EARLY, _LATE))
                if late > GROWTH * early + slack:
                    found.append(f"{name}: {kind} went from {early:.0f} to {late:.0f}")
        return found


def lasting(job: LiveJob, home: Path) -> dict[str, psutil.Process]:
    """The node agent, the master and the pods there are now."""
    agent = StateFolder(home / "agent").agent()
    assert agent is not None, "no node agent runs"
    found = {"agent": psutil.Process(agent.pid)}
    for role in ("master", "worker", "ps"):
        for process in pod_processes(job.job_id, role, home):
            found[process.environ()["ELASTREC_POD"].removeprefix(f"{job.job_id}-")] = process
    return found


def has_pods(job: LiveJob, servers: int, workers: int) -> Callable[[], bool]:
    return lambda: (len(job.pods(Role.PARAMETER_SERVER)), len(job.pods(Role.WORKER))) == (servers, workers)


def change_often(job: LiveJob, home: Path, count: int, seed: int) -> tuple[Watched, list[dict[str, Any]]]:
    """Makes the changes, each after the one before it."""
    random_, watched, made = random.Random(seed), Watched(), []
    servers, workers, memory_bytes = SERVERS, WORKERS, MEMORY_BYTES[0]
    wait_for(job.has_workers(WORKERS), PATIENCE_SECONDS, "the first workers")
    for number in range(count):
        drawn = draw(random_, servers, workers, memory_bytes)
        names = sorted(job.pods(Role.PARAMETER_SERVER))
        moved = (random_.choice(names),) if drawn.moves_server else ()
        began = time.monotonic()
        job.change(*moved, **drawn.shape)
        seconds = time.monotonic() - began
        servers = drawn.shape.get("parameter_servers", servers)
        workers = drawn.shape.get("workers", workers)
        memory_bytes = drawn.shape.get("parameter_server_memory_bytes", memory_bytes)
        # A request is over when nothing depends on what leaves; that ends a moment later.
        wait_for(has_pods(job, servers, workers), PATIENCE_SECONDS, f"{servers} servers and {workers} workers")
        reached = job.metrics().samples_trained
        wait_for(lambda: job.metrics().samples_trained > reached, PATIENCE_SECONDS, "a step")  # noqa: B023
        watched.look(lasting(job, home))
        made.append({"change": number, **asdict(drawn), "seconds": round(seconds, 2)})
        if sys.stderr.isatty() or number % 10 == 9:
            print(f"{number + 1} of {count} changes, {reached:,} samples", file=sys.stderr, flush=True)
    return watched, made


def report(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """What came out of one job."""
    before = shared_memory()
    # Every worker makes a slow step at a time; the fewer there are, the longer the job lasts.
    steps = count * _SECONDS_PER_CHANGE / SLOW_SECONDS * MOST_WORKERS
    epochs = max(2, round(steps * BATCH_ROWS / ROWS))
    with site_at(folder / "home") as site:
        with live_job(site, "often-changed", mode="async", epochs=epochs, interval="10s", keep=3) as job:
            watched, made = change_often(job, site.home, count, seed)
            metrics = job.train_to_the_end()
            accounts, story = job.accounts()
        problems = watched.grown(count) + list(accounts.problems)
        problems += leftovers(site.home, job.job_id, site.cluster, frozenset(), before)
    rows = epochs * ROWS
    if (accounts.lost, accounts.repeated, metrics.samples_trained, metrics.generation) != (0, 0, rows, 0):
        problems.append(
            f"{accounts.lost} samples were lost, {accounts.repeated} repeated, {metrics.samples_trained} of {rows} "
            f"trained, {metrics.generation} rollbacks"
        )
    pauses = [each.pause_seconds for each in story.migrations if each.pause_seconds is not None]
    return {
        "seed": seed,
        "changes": made,
        "latest_migrations": len(pauses),  # a report names no more
        "pause_seconds": {"median": statistics.median(pauses), "most": max(pauses)} if pauses else {},
        "change_seconds": statistics.median(each["seconds"] for each in made),
        "uses": {
            name: [asdict(uses[0]), asdict(uses[-1])] for name, uses in watched.uses.items() if len(uses) == count
        },
        "problems": problems,
    }


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="of changes (default 100)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="changes-") as folder:
        os.chdir(folder)
        found = report(Path(folder), arguments.count, arguments.seed)
        os.chdir("/")
    print(json.dumps(found, indent=1))
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
