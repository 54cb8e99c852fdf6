"""The phase, the term and the generation of a job. Pure; time is an argument."""

from __future__ import annotations

import msgspec

from elastrec.platform.specs.errors import ElastrecError
from elastrec.platform.specs.metrics import Phase

ALLOWED: dict[Phase, frozenset[Phase]] = {
    Phase.PENDING: frozenset({Phase.STARTING, Phase.FAILED, Phase.STOPPED}),
    Phase.STARTING: frozenset({Phase.TRAINING, Phase.EVALUATING, Phase.FAILED, Phase.STOPPED}),
    Phase.TRAINING: frozenset({Phase.SAVING, Phase.RECOVERING, Phase.FAILED, Phase.STOPPED}),
    Phase.RECOVERING: frozenset({Phase.TRAINING, Phase.EVALUATING, Phase.FAILED, Phase.STOPPED}),
    Phase.SAVING: frozenset({Phase.EVALUATING, Phase.RECOVERING, Phase.FAILED, Phase.STOPPED}),
    Phase.EVALUATING: frozenset({Phase.SUCCEEDED, Phase.RECOVERING, Phase.FAILED, Phase.STOPPED}),
    Phase.SUCCEEDED: frozenset(),
    Phase.FAILED: frozenset(),
    Phase.STOPPED: frozenset(),
}
"""The allowed transitions between phases."""

NUMBERS_PER_TERM = 10**9
"""A journal that begins in a term starts its versions, generations, orders and routing epochs at this number times the
number of earlier terms, so that all numbers of a later journal are higher than those of an earlier one."""


class Phases(msgspec.Struct, kw_only=True):
    """Phase, term and generation of a job, and the numbers of its orders.

    Attributes:
        term: of the master; 0 before it has taken one.
        version: of the directives; `JobState.handle` increases it when their contents change.
        resume: the phase that follows the start, or a recovery.
    """

    term: int = 0
    phase: Phase = Phase.PENDING
    since: float = 0.0
    seconds: dict[str, float] = {}
    version: int = 1
    generation: int = 0
    resume: Phase = Phase.TRAINING
    orders: int = 1

    def move(self, to: Phase, time: float) -> None:
        """Changes the phase; no other code does.

        Raises:
            ElastrecError: the table of allowed transitions does not contain this one.
        """
        if to not in ALLOWED[self.phase]:
            raise ElastrecError(f"a job cannot go from {self.phase} to {to}; allowed: {sorted(ALLOWED[self.phase])}")
        self.seconds[self.phase] = self.seconds.get(self.phase, 0.0) + max(0.0, time - self.since)
        self.phase, self.since = to, time

    def time_in_phases(self, time: float) -> dict[str, float]:
        """Seconds by phase up to now."""
        current = self.seconds.get(self.phase, 0.0) + (0.0 if self.phase.is_final else max(0.0, time - self.since))
        return {**self.seconds, self.phase: current}

    @property
    def next_version(self) -> int:
        """The version of the first directive that contains the changes of the current event."""
        return self.version + 1

    def next_order(self) -> int:
        """The number of a new order; none is used twice."""
        self.orders += 1
        return self.orders

    def begin_first_term(self, term: int) -> None:
        """Sets the first numbers of a journal that begins in this term."""
        first = (term - 1) * NUMBERS_PER_TERM
        self.term = term
        self.version, self.generation, self.orders = first + 1, first, first + 1

    def begin_next_term(self, term: int) -> None:
        """Continues the same journal in a higher term, which distinguishes its versions from the earlier ones."""
        self.term = term

    def begin_generation(self) -> None:
        """Begins a new generation, in which earlier leases and pushes are void."""
        self.generation += 1
