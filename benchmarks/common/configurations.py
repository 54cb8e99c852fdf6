"""The speed of one job in many configurations, one after the other, measured by its own master.

Workers join and leave and pods change their cores while the job trains. Starts of workers do not count, because a
master measures only while every pod of a configuration is up.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.common.jobs import launched
from elastrec.platform import jobs
from elastrec.platform.jobs.watching.masters import wait_for_master
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.shape import PlacesChange
from elastrec.platform.specs.shape import Shape as JobShape
from elastrec.platform.transport import RpcClient
from elastrec.platform.transport.messages.observer import ChangeShape, ShapeAnswer
from elastrec.platform.transport.messages.profile import GetProfile, Profile

_POLL_SECONDS = 0.25
_START_SECONDS = 240.0


@dataclass(frozen=True)
class Shape:
    """A shape requested of a running job."""

    workers: int
    worker_cores: float
    server_cores: float

    def is_of(self, configuration: JobShape) -> bool:
        workers, servers = configuration[Role.WORKER], configuration[Role.PARAMETER_SERVER]
        sizes = workers.count, workers.size.cores, servers.size.cores
        return (self.workers, self.worker_cores, self.server_cores) == sizes


def measure_shapes(
    platform: jobs.Platform,
    content: dict[str, Any],
    shapes: Sequence[Shape],
    *,
    seconds: float,
    least_steps: int,
    warm_up_seconds: float = 0.0,
    say: Callable[[str], None] = lambda line: None,
) -> Profile:
    """Trains a job in every shape until each was measured for a time and a number of steps; returns the last profile.

    Args:
        content: the job file; it must have rows for longer than this takes.
        shapes: in this order; measurements of a repeated shape are added.
        seconds: in each shape.
        warm_up_seconds: time of training before the first shape, because the first steps create rows and caches.

    Raises:
        RuntimeError: the job ended, or a shape did not come up.
    """
    with launched(platform, content) as job_id, contextlib.closing(wait_for_master(platform, job_id)) as client:
        _wait(client, lambda profile: profile.is_settled, _START_SECONDS, "the start")
        time.sleep(warm_up_seconds)
        for shape in shapes:
            profile = _measure(client, shape, seconds, least_steps)
            say(_line(profile, shape))
        return profile


def _measure(client: RpcClient, shape: Shape, seconds: float, least_steps: int) -> Profile:
    before = _measured(_profile(client), shape)
    asked = ChangeShape(
        change={
            Role.WORKER: PlacesChange(count=shape.workers, cores=shape.worker_cores),
            Role.PARAMETER_SERVER: PlacesChange(cores=shape.server_cores),
        }
    )
    done = client.call(asked, ShapeAnswer, timeout_seconds=15, remember=True)
    if not done.accepted:
        raise RuntimeError(f"{shape}: refused: {done.reason}")

    def is_enough(profile: Profile) -> bool:
        steps, worker_seconds = _measured(profile, shape)
        return steps - before[0] >= least_steps and (worker_seconds - before[1]) / shape.workers >= seconds

    return _wait(client, is_enough, _START_SECONDS + 10 * seconds, str(shape))


def _profile(client: RpcClient) -> Profile:
    return client.call(GetProfile(), Profile, timeout_seconds=15)


def _measured(profile: Profile, shape: Shape) -> tuple[int, float]:
    """Steps in a shape so far, and worker seconds, in which older ones have less weight."""
    for each in profile.measured:
        if shape.is_of(each.configuration):
            return each.steps_ever, each.worker_seconds
    return 0, 0.0


def _wait(client: RpcClient, ready: Callable[[Profile], bool], seconds: float, what: str) -> Profile:
    deadline, profile = time.monotonic() + seconds, _profile(client)
    while time.monotonic() < deadline:
        profile = _profile(client)
        if ready(profile):
            return profile
        time.sleep(_POLL_SECONDS)
    raise RuntimeError(f"{what}: not measured within {seconds:.0f} s; last profile: {profile}")


def _line(profile: Profile, shape: Shape) -> str:
    for each in profile.measured:
        if shape.is_of(each.configuration):
            return (
                f"{each.configuration[Role.PARAMETER_SERVER].count} servers × {shape.server_cores:g}, "
                f"{shape.workers} workers × {shape.worker_cores:g} cores: "
                f"{1000 * each.worker_seconds / each.steps:.1f} ms per step, "
                f"{each.steps_ever} steps"
            )
    return f"{shape}: nothing"
