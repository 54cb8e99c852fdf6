"""Real jobs that are changed while they train, and the time of each from its first sample to its last.

A restart is the alternative to migration: save, stop, and continue from the record with other sizes (`elastrec stop`,
then `elastrec resume --set`), done immediately and by a program.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.common.figures import Figure, interleave, ratio
from benchmarks.common.jobs import launch, launched
from elastrec.platform import jobs
from elastrec.platform.jobs.watching.masters import wait_for_master
from elastrec.platform.specs.metrics import Phase, TrainingMetrics
from elastrec.platform.specs.text import plain_words
from elastrec.platform.transport.messages.job import Done
from elastrec.platform.transport.messages.ledger import Explanation
from elastrec.platform.transport.messages.observer import SaveNow

_LOOK_SECONDS, _SAVE_SECONDS = 0.2, 120.0
TRAINS = f"the job {plain_words.phase(Phase.TRAINING)}"
"""Words of the entry of a job's timeline with which its training begins."""


@dataclass(frozen=True)
class Trained:
    """A job whose rows were all trained.

    Attributes:
        seconds: from the first observed trained sample to the last one, including restarts.
        explanation: its story; after a restart, that of the last start.
    """

    seconds: float
    metrics: TrainingMetrics
    explanation: Explanation

    def seconds_until(self, words: str, otherwise: str) -> float:
        """From the begin of training until the first entry of the timeline with these words.

        Args:
            otherwise: the message if there is none.

        Raises:
            RuntimeError: there is none.
        """
        began = next(entry.seconds for entry in self.explanation.timeline if entry.what == TRAINS)
        moments = [entry.seconds - began for entry in self.explanation.timeline if words in entry.what]
        if not moments:
            raise RuntimeError(otherwise)
        return moments[0]


Interfere = Callable[[str, float, TrainingMetrics], None]
"""Called a few times a second with the job's id, the seconds since its first sample, and its state."""


class JobFailedError(RuntimeError):
    """A job failed; its reason and the last lines of its pods."""


def train(
    platform: jobs.Platform, content: dict[str, Any], interfere: Interfere, timeout_seconds: float = 900.0
) -> Trained:
    """Trains a job to its last row; its pods are removed whatever happens.

    Raises:
        JobFailedError: it failed, or is not done in time.
    """
    with launched(platform, content) as job_id:
        deadline, begun = time.monotonic() + timeout_seconds, 0.0
        while True:
            seen = jobs.observe(platform, job_id)
            metrics, now = seen.metrics, time.monotonic()
            if metrics.phase is Phase.FAILED or now > deadline:
                raise JobFailedError(f"{metrics.phase}: {metrics.reason}\n{jobs.failure_report(platform, job_id)}")
            if seen.reachable and metrics.samples_trained:
                begun = begun or now
                if metrics.shards_done == metrics.shards_total:
                    return Trained(now - begun, metrics, jobs.explanation(platform, job_id))
                interfere(job_id, now - begun, metrics)
            time.sleep(_LOOK_SECONDS)


def leave_alone(job_id: str, seconds: float, metrics: TrainingMetrics) -> None:
    """Does not change the job."""


def restart(platform: jobs.Platform, job_id: str, overrides: Mapping[str, Any]) -> None:
    """Saves a job, stops it, and launches it again with other values of its file; returns when its master runs.

    Args:
        overrides: by dotted path.
    """
    before = jobs.observe(platform, job_id).metrics.checkpoint
    with contextlib.closing(wait_for_master(platform, job_id)) as client:
        client.call(SaveNow(), Done, timeout_seconds=15.0)
    deadline = time.monotonic() + _SAVE_SECONDS
    while jobs.observe(platform, job_id).metrics.checkpoint == before:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the job was not saved within {_SAVE_SECONDS:.0f} s")
        time.sleep(_LOOK_SECONDS)
    jobs.stop(platform, job_id, "restarted with other sizes")
    resume(platform, job_id, overrides)


def resume(platform: jobs.Platform, job_id: str, overrides: Mapping[str, Any], room_seconds: float = 0.0) -> None:
    """Launches a stopped job again, from its newest record and with other values of its file.

    Args:
        overrides: by dotted path.
        room_seconds: see `launch`.
    """
    kept = jobs.resumable(platform, job_id)
    prepared = jobs.prepare_again(platform, kept, overrides)
    allocation = jobs.warm_start(platform, prepared)
    launch(platform, prepared, allocation, room_seconds, kept.earlier_terms)


def events(trained: Trained) -> str:
    """The job's explanation, a line for each event, with its time since the launch."""
    return "".join(f"\n  {entry.seconds:.0f} s: {entry.what}" for entry in trained.explanation.timeline)


@dataclass(frozen=True)
class Sides:
    """One job with the platform's reaction, without it, and restarted by a person at the time of the platform's
    decision.

    Attributes:
        done: the platform's reaction, in the past tense: the name of its side.
        helped, alone: functions that train the job once.
        restarted: the same, with a restart after a number of seconds of training.
        decided_after: seconds of training until the platform's decision.
    """

    done: str
    helped: Callable[[], Trained]
    alone: Callable[[], Trained]
    restarted: Callable[[float], Trained]
    decided_after: Callable[[Trained], float]

    def measure(self, rounds: int) -> tuple[dict[str, list[float]], list[float]]:
        """Seconds of each side, in turn, and times of the platform's decisions."""
        decided: list[float] = []

        def side(name: str, run: Callable[[], Trained]) -> Callable[[], float]:
            def timed() -> float:
                trained = run()
                print(f"{name}: {trained.seconds:.1f} s{events(trained)}", file=sys.stderr)
                if name == self.done:
                    decided.append(self.decided_after(trained))
                return trained.seconds

            return timed

        runs = {self.done: self.helped, "alone": self.alone, "restarted": lambda: self.restarted(decided[-1])}
        return interleave({name: side(name, run) for name, run in runs.items()}, rounds), decided

    def figures(
        self,
        benchmark: str,
        measured: tuple[dict[str, list[float]], list[float]],
        goals: Mapping[str, float],
        settings: Mapping[str, Any],
    ) -> list[Figure]:
        """Completion times of the same round against each other.

        Args:
            measured: the result of `measure`.
            goals: in %, below those of the sides `restart` and `none`.
        """
        seconds, decided = measured
        noted = {
            "seconds": {name: [round(value, 1) for value in values] for name, values in seconds.items()},
            f"{self.done}_after_seconds": [round(value, 1) for value in decided], **settings,
        }  # fmt: skip
        against = {"restart": ("restarted", "restarted"), "none": ("alone", "left alone")}
        return [
            Figure(f"{benchmark}.to_{name}", 100 * (ratio(seconds[self.done], seconds[side]) - 1),
                   f"% of completion time, {self.done} against {words}", at_most=goals[name], settings=noted)
            for name, (side, words) in against.items()
        ] + [Figure(f"{benchmark}.{self.done}_after", statistics.median(decided), "s of training")]  # fmt: skip
