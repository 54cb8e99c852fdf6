"""Real jobs that something is done to while they train, and how long each took from its first sample to its last.

A restart is what people do without migration: save, stop, and go on from the record with other sizes (`elastrec stop`,
then `elastrec resume --set`), done at once and by a program.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.common.jobs import launched
from elastrec.platform import jobs
from elastrec.platform.jobs.watching.masters import wait_for_master
from elastrec.platform.specs.metrics import Phase, TrainingMetrics
from elastrec.platform.transport.messages.job import Done
from elastrec.platform.transport.messages.ledger import Explanation
from elastrec.platform.transport.messages.observer import SaveNow

_LOOK_SECONDS, _SAVE_SECONDS = 0.2, 120.0


@dataclass(frozen=True)
class Trained:
    """A job whose rows were all trained.

    Attributes:
        seconds: from the first trained sample that was seen to the last one; restarts count.
        explanation: its story; after a restart, that of the last start.
    """

    seconds: float
    metrics: TrainingMetrics
    explanation: Explanation


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
    """Nothing is done to the job."""


def restart(platform: jobs.Platform, job_id: str, overrides: Mapping[str, Any]) -> None:
    """Saves a job, stops it, and launches it again with other values of its file; returns when a master is there.

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


def resume(platform: jobs.Platform, job_id: str, overrides: Mapping[str, Any]) -> None:
    """Launches a job that was stopped again, from its newest record and with other values of its file.

    Args:
        overrides: by dotted path.
    """
    kept = jobs.resumable(platform, job_id)
    prepared = jobs.prepare_again(platform, kept, overrides)
    allocation = jobs.warm_start(platform, prepared)
    jobs.launch(platform, prepared, allocation, earlier_terms=kept.earlier_terms)


def happened(trained: Trained, word: str) -> list[str]:
    """What the job's story says with this word in it, each with its second."""
    return [f"{entry.seconds:.0f} s: {entry.what}" for entry in trained.explanation.timeline if word in entry.what]
