"""Which jobs a policy is asked about in a round. A job that nobody wants to change is asked about less and less often.

A real cluster asks about every job in every round. To do so here would take most of a simulation's time, for answers
that are known: what a policy had no plan for a moment ago it has none for now, unless something has happened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from elastrec.platform.scaling.amounts import Change, Resources
from elastrec.platform.scaling.policy import Round
from elastrec.platform.simulator.running import Running


@dataclass(frozen=True)
class _Answer:
    """The last one about a job.

    Attributes:
        wait: rounds until the next question.
        short: of that much that was free more could have been wanted; None where it was enough for anything.
    """

    round_number: int
    wait: int
    version: int
    short: Resources | None


class Patience:
    """Remembers what was answered.

    Args:
        most_rounds: longest wait; 1: every job is asked about in every round.
    """

    def __init__(self, most_rounds: int) -> None:
        self._most = most_rounds
        self._answers: dict[str, _Answer] = {}

    def is_due(self, job: Running, round_number: int, free: Resources) -> bool:
        """After its wait, or when it has changed, or when there is more room and it had too little before."""
        last = self._answers.get(job.job.job_id)
        if last is None or last.version != job.version or round_number - last.round_number >= last.wait:
            return True
        return last.short is not None and not free.fits(last.short)

    def remember(self, asked: Sequence[Running], answer: Round, round_number: int, free: Resources) -> None:
        """Waits double for jobs to which nothing was proposed but to stay; all others are asked about next time.

        Those that would change but have no room compete in every round: which of them gets room is what matters then.
        """
        if self._most == 1:
            return
        content = {each.job_id for each in answer.proposals if len(each.candidates) == 1}
        for job in asked:
            job_id = job.job.job_id
            last, wait = self._answers.get(job_id), 1
            if last is not None and last.version == job.version and job_id in content:
                wait = min(2 * last.wait, self._most)
            short = None if _most_wanted(job).fits(free) else free
            self._answers[job_id] = _Answer(round_number, wait, job.version, short)


def _most_wanted(job: Running) -> Resources:
    """What the largest allocation that a plan may give a job takes beyond what it holds."""
    limits, movable, held = job.job.limits, job.job.movable, job.held
    bounds: Mapping[str, tuple[Change, float]] = {
        "workers": (Change.WORKERS, limits.workers[1]),
        "parameter_servers": (Change.SERVERS, limits.parameter_servers[1]),
        "worker_cores": (Change.WORKER_SIZE, limits.worker_cores[1]),
        "parameter_server_cores": (Change.SERVER_SIZE, limits.parameter_server_cores[1]),
        "parameter_server_memory_bytes": (Change.SERVER_SIZE, limits.parameter_server_memory_bytes[1]),
    }
    most = {
        name: max(bound, getattr(held, name)) for name, (change, bound) in bounds.items() if change in movable
    }  # fmt: skip
    return msgspec.structs.replace(held, **most).resources - held.resources
