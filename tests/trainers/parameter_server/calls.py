"""A server for tests, whose handlers are called as by the transport."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from elastrec.trainers.parameter_server.messages import (
    Applied,
    InitDense,
    Leave,
    Origin,
    Parameter,
    Pull,
    Push,
    PushPull,
    Stamp,
)
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from tests.splits import origin_of
from tests.trainers.parameter_server.running import DIMENSION, job_spec, routing_of

SGD = {"rows": {"kind": "sgd", "learning_rate": 1.0}, "dense": {"kind": "sgd", "learning_rate": 1.0}}
BATCH = 20
LAYOUT = [Parameter("w", (2,))]


def server_of(
    mode: str = "async", staleness: int = 0, workers: int = 1, layout: Sequence[Parameter] = LAYOUT, cores: float = 1.0
) -> ParameterServer:
    training = {"batch_size": BATCH, "consistency": {"mode": mode, "staleness": staleness}}
    spec = job_spec(optimizers=SGD, training=training, resources={"worker": {"count": workers}})
    server = ParameterServer("ps-0", spec, capacity_rows=1000, granted_cores=cores)
    server.start_empty(routing_of(["here:1"]), 1)
    elements = sum(math.prod(parameter.shape) for parameter in layout)
    server.init_dense(InitDense(stamp=stamp("a"), layout=list(layout)), [np.zeros(elements, np.float32)])
    return server


def stamp(worker: str, *, epoch: int = 1, generation: int = 1, incarnation: str = "i", version: int = -1) -> Stamp:
    return Stamp(worker, incarnation, epoch, generation, version)


def origin(worker: str, place: int) -> Origin:
    """Each worker has a split of its own."""
    return origin_of(place, number=int.from_bytes(worker.encode()), rows=BATCH)


def applied(place: int) -> Applied:
    """The answer when pushes up to this place are in the parameters; -1: none is."""
    return Applied(offsets=[BATCH * (place + 1) if place >= 0 else -1])


def pull(server: ParameterServer, worker: str, ids: list[int], **names: Any) -> Any:
    message = Pull(stamp=stamp(worker, **names), dense=True)
    return server.pull(message, [np.array([len(ids), 0], np.int32), np.array(ids, np.int64)])


def gradient(ids: list[int], value: float) -> list[np.ndarray]:
    return [
        np.array([len(ids), 0], np.int32),
        np.array(ids, np.int64),
        np.full(len(ids) * DIMENSION, value, np.float32),
        np.empty(0, np.int32),
        np.full(2, value, np.float32),
    ]


def push(
    server: ParameterServer,
    worker: str,
    place: int,
    ids: list[int],
    value: float,
    samples: int = BATCH,
    rate_scale: float = 1.0,
    **names: Any,
) -> Any:
    message = Push(
        stamp=stamp(worker, **names),
        origin=origin(worker, place),
        samples=samples,
        number=place + 1,
        rate_scale=rate_scale,
    )
    return server.push(message, gradient(ids, value))


def push_pull(server: ParameterServer, worker: str, place: int, ids: list[int], value: float, **names: Any) -> Any:
    """Pushes gradients of the ids and pulls the same rows."""
    mine = stamp(worker, **names)
    message = PushPull(
        push=Push(stamp=mine, origin=origin(worker, place), samples=BATCH, number=place + 1),
        pull=Pull(stamp=mine, dense=True),
    )
    asked = [np.array([len(ids), 0], np.int32), np.array(ids, np.int64)]
    return server.push_pull(message, gradient(ids, value) + asked)


def leave(server: ParameterServer, worker: str, *places: int, **names: Any) -> Any:
    """Leaves, and asks for pushes at these places of the worker's split."""
    waiting = [origin(worker, place) for place in places]
    return server.leave(Leave(stamp=stamp(worker, **names), waiting=waiting), [])[0]
