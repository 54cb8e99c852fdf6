"""The jobs for which a policy is called in a round. Jobs without changes are included less and less often.

On a real cluster, every round includes every job. Here this would take most of a simulation's time for the same
answers: a job without a plan a moment ago usually has none now, unless something has happened to it.
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
    """The last answer about a job.

    Attributes:
        wait: rounds until the next call.
        short: the free capacity, if it was too small for some plan; None: it was enough for every plan.
    """

    round_number: int
    wait: int
    version: int
    short: Resources | None


class Patience:
    """Keeps the last answers.

    Args:
        most_rounds: longest wait; 1: every round includes every job.
    """

    def __init__(self, most_rounds: int) -> None:
        self._most = most_rounds
        self._answers: dict[str, _Answer] = {}

    def is_due(self, job: Running, round_number: int, free: Resources) -> bool:
        """Whether to include a job: its wait is over, it has changed, needs memory, or more capacity is free and it had
        too little before."""
        last = self._answers.get(job.job.job_id)
        if (
            last is None
            or job.is_short_of_memory
            or last.version != job.version
            or round_number - last.round_number >= last.wait
        ):
            return True
        return last.short is not None and not free.fits(last.short)

    def remember(self, asked: Sequence[Running], answer: Round, round_number: int, free: Resources) -> None:
        """Doubles the waits of jobs whose only proposal was to stay; the next round includes all others.

        Jobs that would change but do not fit compete in every round, because the choice among them matters.
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
    """Resources of the largest allocation that a plan may give a job, beyond those that it holds."""
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
