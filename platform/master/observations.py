"""What a master has seen of its pods and does not journal: speeds, starts, growth of tables, the last window.

Figures for people and for plans; no decision of the state machine hangs on them. What plans are made of is handed on
to a restarted master (`memoir`), the rest is gathered anew. The service's lock guards all of it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from elastrec.platform.master.growth_book import GrowthBook, GrowthPoint
from elastrec.platform.master.monitor import Monitor, Window
from elastrec.platform.master.profile_book import ProfileBook, is_settled
from elastrec.platform.master.start_book import Start, StartBook
from elastrec.platform.master.state import JobState
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.transport.job_messages import Heartbeat
from elastrec.platform.transport.profile_messages import Measured


class Remembered(msgspec.Struct, kw_only=True):
    """What a restarted master is told: as much as there were configurations, points and pods, not steps.

    Attributes:
        generation: of the job while `growth` was seen.
    """

    measured: list[Measured] = []
    generation: int = -1
    growth: list[GrowthPoint] = []
    starts: list[Start] = []


class Observations:
    """Of one job.

    Attributes:
        window: the last one in which something was trained.
    """

    def __init__(self, now: float) -> None:
        self.monitor = Monitor(now)
        self.profile = ProfileBook()
        self.starts = StartBook()
        self.growth = GrowthBook()
        self.window: Window | None = None

    def remembered(self) -> Remembered:
        """What should outlive this process."""
        generation, growth = self.growth.points()
        return Remembered(
            measured=self.profile.measured(), generation=generation, growth=growth, starts=self.starts.starts()
        )

    def recall(self, known: Remembered) -> None:
        """Takes over what a master before this one knew."""
        self.profile.recall(known.measured)
        self.growth.recall(known.generation, known.growth)
        self.starts.recall(known.starts)

    def handled(self, state: JobState, now: float) -> None:
        """An event was handled; pods may have been asked for."""
        self.starts.asked(state, now)

    def registered(self, pod: str, state: JobState, now: float) -> None:
        """A process has started; a server that has is at work."""
        member = state.membership.members.get(pod)
        if member is not None and member.role is Role.PARAMETER_SERVER:
            self.starts.works(pod, now)

    def heartbeat(self, message: Heartbeat, state: JobState, now: float) -> None:
        """A member's life sign with its figures; a window of them counts once."""
        if self.monitor.add(message, is_training=state.phase is Phase.TRAINING):
            self.profile.add(message.pod, message.metrics, state, now)
            self.starts.works(message.pod, now)

    def keep_only(self, pods: Iterable[str]) -> None:
        """Forgets what other pods did."""
        for gone in self.monitor.pods.keys() - set(pods):
            self.monitor.forget(gone)

    def close_window(self, state: JobState, now: float) -> bool:
        """Whether a window of the job's figures ended."""
        window = self.monitor.close_window(now)
        if window is None:
            return False
        if window.samples:
            self.window = window
        if is_settled(state):
            self.growth.add(state.training.samples, state.phases.generation, self.monitor.tables())
        return True
