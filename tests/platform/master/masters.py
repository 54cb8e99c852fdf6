"""Several masters of one job with one store, consecutive or concurrent."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elastrec.checkpoints import (
    list_records,
    take_term,
)
from elastrec.platform.master.machine.phases import NUMBERS_PER_TERM
from elastrec.platform.specs.splits import Positions
from elastrec.platform.transport.messages.observer import SaveNow, StopJob
from tests.platform.master.fakes import job
from tests.platform.master.stage import Stage

Make = Callable[..., Stage]


@pytest.fixture(name="stage")
def stage_fixture(tmp_path: Path) -> Iterator[Make]:
    """Masters of one job over one store, each with a journal of its own unless it names another's."""
    with contextlib.ExitStack() as stack:
        made: list[Stage] = []

        def make(
            journal: str = "journal",
            training: dict[str, Any] | None = None,
            silence: float = 30.0,
            keep: int = 3,
            **sizes: Any,
        ) -> Stage:
            folder = tmp_path / journal
            folder.mkdir(exist_ok=True)
            training_sections = {"batch_size": 10, "batches_per_shard": 2} | (training or {})
            faults = {"heartbeat_interval": 0.02, "heartbeat_timeout": silence, "lease": 60}
            plan = job(training=training_sections, faults=faults, checkpoint={"interval": 0, "keep": keep})
            of = Stage(tmp_path, plan, folder, **({"rows": 4000} | sizes))
            if made:
                # The pods of the job are what masters share.
                of.cluster, of.pods, of.trained = made[0].cluster, made[0].pods, made[0].trained
            else:
                stack.callback(lambda: [pod.killed.set() for pod in of.pods.values()])
            made.append(of)
            return of

        yield make
        # The newest one first: it is the one that would go on to make pods.
        for of in reversed(made):
            if hasattr(of, "service"):
                of.close()


def saved(s: Stage) -> str:
    """Makes a record; returns its URI."""
    before = s.service.state.saves.completed
    assert s.call(SaveNow()).accepted
    s.wait(lambda: s.service.state.saves.completed > before)
    record = s.service.state.recovery.record
    assert record is not None
    return record.uri


def stop_job(s: Stage) -> None:
    """A user stops the job; returns when its pods have gone."""
    assert s.call(StopJob(reason="enough")).accepted
    s.wait(s.service.state.is_swept)


def stopped(stage: Make) -> Stage:
    """A master of a job that was stopped after a record, and that has ended itself."""
    s = stage()
    s.start()
    trained(s, 20)
    saved(s)
    stop_job(s)
    s.stop()
    return s


def trained(s: Stage, shards: int) -> None:
    s.wait(lambda: s.service.state.training.done >= shards)


def rival(s: Stage, base: str = "") -> int:
    """Another master takes the next term."""
    name, job_id = s.job_name, s.request.job_id
    return take_term(s.request.store, name, job_id, holder="rival", address="127.0.0.1:9", base=lambda: base).term


def committed(s: Stage) -> list[str]:
    """URIs of the complete records in the store, the newest one first."""
    return [uri for uri, _ in list_records(s.request.store, s.job_name, s.request.job_id)]


def counted(positions: Positions, successor: Stage) -> list[int]:
    """How often each row counts: those that the record holds, and those that the successor has trained."""
    queue = successor.service.state.training
    training = positions.of(queue.stream)
    assert training is not None
    begun = {one.number: one.offset for one in training.begun}
    counts = [0] * queue.splits.rows
    ranges = {number: queue.splits.range(number) for number in map(queue.splits.number_at, range(training.cursor))}
    spans = [(rows.start, rows.start + begun.get(number, rows.length)) for number, rows in ranges.items()]
    spans += [(start, end) for generation, _, start, end in successor.trained if generation >= NUMBERS_PER_TERM]
    for start, end in spans:
        for row in range(start, end):
            counts[row] += 1
    return counts
