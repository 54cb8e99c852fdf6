"""The common base of the parts of a JobService: the pods' calls, the observers' calls, and timed work."""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable

from elastrec.platform.master.machine import events
from elastrec.platform.master.machine.effects import Effect
from elastrec.platform.master.machine.state import JobState
from elastrec.platform.master.measuring.observations import Observations
from elastrec.platform.master.pods.heartbeats import Heartbeats
from elastrec.platform.master.pods.launch import LaunchRequest
from elastrec.platform.master.pods.reconciler import Reconciler
from elastrec.platform.master.scaling.memory_watch import MemoryWatch
from elastrec.platform.master.service.executor import Executor
from elastrec.platform.master.service.history_sink import HistorySink
from elastrec.platform.master.service.journal import Journal
from elastrec.platform.specs.job import TrainingJob


class ServicePart(abc.ABC):
    """Base of each part; the JobService creates all attributes that are declared here.

    Attributes:
        state: must be read under `_lock`; only events change it.
    """

    request: LaunchRequest
    job: TrainingJob
    state: JobState
    journal: Journal
    _lock: threading.RLock
    _clock: Callable[[], float]
    _heartbeats: Heartbeats
    _seen: Observations
    _executor: Executor
    _reconciler: Reconciler
    _history: HistorySink | None
    _memory_watch: MemoryWatch

    @abc.abstractmethod
    def now(self) -> float:
        """Seconds on the job's clock."""

    @abc.abstractmethod
    def submit(self, make: Callable[[float], events.Event]) -> list[Effect]:
        """Handles an event by the state machine; returns when it is on disk and its effects have been started."""
