"""Resources that a simulated job held and used, summed over time."""

from __future__ import annotations

from dataclasses import dataclass

from elastrec.platform.scaling.amounts import Allocation
from elastrec.platform.simulator.memory import MemoryTruth
from elastrec.platform.simulator.report import Used
from elastrec.platform.simulator.speed import Rate


@dataclass
class Amounts:
    """Core-seconds and byte-seconds of one role."""

    cores: float = 0.0
    cores_used: float = 0.0
    memory: float = 0.0
    memory_used: float = 0.0

    def used(self) -> Used:
        """For the report."""
        return Used(self.cores / 3600.0, self.cores_used / 3600.0, self.memory / 3600.0, self.memory_used / 3600.0)


class Accounts:
    """Both roles of a job."""

    def __init__(self) -> None:
        self.workers, self.servers = Amounts(), Amounts()
        self.paid_until = 0.0

    def hold(self, held: Allocation, now: float) -> None:
        """Adds the resources held since the last call."""
        seconds, self.paid_until = now - self.paid_until, now
        self.workers.cores += seconds * held.workers * held.worker_cores
        self.workers.memory += seconds * held.workers * held.worker_memory_bytes
        self.servers.cores += seconds * held.parameter_servers * held.parameter_server_cores
        self.servers.memory += seconds * held.parameter_servers * held.parameter_server_memory_bytes

    def use(self, trains: Allocation, rate: Rate, memory: MemoryTruth | None, trained: float, seconds: float) -> None:
        """Adds the resources that training used for some seconds; without a memory model, all held memory counts as
        used."""
        self.workers.cores_used += seconds * trains.workers * trains.worker_cores * rate.worker_busy
        self.servers.cores_used += seconds * trains.parameter_servers * trains.parameter_server_cores * rate.server_busy
        worker, server = float(trains.worker_memory_bytes), float(trains.parameter_server_memory_bytes)
        if memory is not None:
            worker = min(worker, memory.worker_bytes)
            mean = memory.bytes_per_row * memory.rows(trained) / trains.parameter_servers
            server = min(server, memory.server_base_bytes + mean)
        self.workers.memory_used += seconds * trains.workers * worker
        self.servers.memory_used += seconds * trains.parameter_servers * server

    @property
    def core_seconds(self) -> float:
        """Held, of both roles."""
        return self.workers.cores + self.servers.cores

    @property
    def byte_seconds(self) -> float:
        """Held, of both roles."""
        return self.workers.memory + self.servers.memory
