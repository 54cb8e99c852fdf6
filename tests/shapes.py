"""Short functions that create shapes of jobs."""

from __future__ import annotations

from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.shape import Places, PlacesChange, PodSize, Shape


def shape(
    workers: int = 2,
    parameter_servers: int = 2,
    worker_cores: float = 1.0,
    parameter_server_cores: float = 1.0,
    worker_memory_bytes: int = 1000,
    parameter_server_memory_bytes: int = 1000,
) -> Shape:
    """Workers and servers of one job."""
    return Shape(
        {
            Role.PARAMETER_SERVER: Places(
                parameter_servers, PodSize(parameter_server_cores, parameter_server_memory_bytes)
            ),
            Role.WORKER: Places(workers, PodSize(worker_cores, worker_memory_bytes)),
        }
    )


def change(
    workers: int | None = None,
    parameter_servers: int | None = None,
    worker_cores: float | None = None,
    parameter_server_cores: float | None = None,
    parameter_server_memory_bytes: int | None = None,
    worker_memory_bytes: int | None = None,
) -> dict[Role, PlacesChange]:
    """What is named shall be different."""
    wanted = {
        Role.WORKER: PlacesChange(count=workers, cores=worker_cores, memory_bytes=worker_memory_bytes),
        Role.PARAMETER_SERVER: PlacesChange(
            count=parameter_servers, cores=parameter_server_cores, memory_bytes=parameter_server_memory_bytes
        ),
    }
    return {role: places for role, places in wanted.items() if places != PlacesChange()}
