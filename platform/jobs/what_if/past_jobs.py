"""Converts a team's finished jobs to a workload, to simulate them under another policy. Pure.

The coefficients of a job are fitted to all runs of its name, and then scaled to its own speed. With only one
configuration, the shares of a step come from its workers' measurements (pull, compute, push); without measurements,
documented shares are assumed. A job whose sizes changed while it ran has the coefficients that its master fitted. A
simulation is only as good as the recorded runs, and `notes` name what is missing.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from elastrec.platform.history import metric_names as names
from elastrec.platform.history.decisions import read_coefficients
from elastrec.platform.history.records import JobRecord
from elastrec.platform.scaling.amounts import Allocation
from elastrec.platform.scaling.model.columns import Columns
from elastrec.platform.scaling.model.throughput import fit
from elastrec.platform.scaling.types import Coefficients, Limits, ModelShape, Observation
from elastrec.platform.simulator.mixes import features_of
from elastrec.platform.simulator.workload import JobToRun
from elastrec.platform.specs.errors import ScalingError
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.specs.text.some import counted

_DENSE_BYTES = 10_000_000
"""Dense parameters of a job whose coefficients are fitted here. Chosen: fit and simulation use the same value, so that
it only scales the coefficient of synchronisation."""
_STEPPING_SECONDS = tuple(
    names.named(names.TIME_SECONDS, part=part) for part in ("training", "waiting_for_data", "redoing_lost_work")
)


class Past(msgspec.Struct, frozen=True):
    """The jobs of a history that can be simulated.

    Attributes:
        left_out: job id and reason of every job that cannot be simulated.
        notes: for people; limits of single models.
    """

    jobs: tuple[JobToRun, ...]
    left_out: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


class _Run(msgspec.Struct, frozen=True):
    """A run that can be used.

    Attributes:
        allocation: at its start.
        seen: its mean step; meaningless if its sizes changed.
        own: coefficients that its master has fitted to its measurements; None if its sizes never changed.
    """

    record: JobRecord
    allocation: Allocation
    shape: ModelShape
    seen: Observation
    samples: float
    own: Coefficients | None


def jobs_of(records: Sequence[JobRecord], largest_growth: int = 8) -> Past:
    """The finished jobs of a history, the earliest at second 0.

    Args:
        largest_growth: plans may give a job at most this many times its workers and servers.
    """
    runs: dict[tuple[str, int, int], list[_Run]] = defaultdict(list)
    left_out, changed = [], []
    taken: set[str] = set()
    for record in sorted(records, key=lambda item: item.started_unix_seconds):
        run, reason = _run(record)
        if run is not None and record.job_id in taken:
            run, reason = None, "another attempt at the same job is taken"
        if run is None:
            left_out.append((record.job_id, reason))
            continue
        taken.add(record.job_id)
        if run.own is not None:
            changed.append((run, run.own))
        else:
            runs[record.job_name, run.shape.batch_size, run.shape.embedding_dimension].append(run)
    usable = [*itertools.chain.from_iterable(runs.values()), *(run for run, _ in changed)]
    begin = min((run.record.started_unix_seconds for run in usable), default=0.0)
    jobs, notes = [_job(run, own, begin, largest_growth) for run, own in changed], []
    for (name, *_), group in sorted(runs.items()):
        try:
            model = fit(group[0].shape, [run.seen for run in group], job_id=name)
        except ScalingError as error:
            left_out += [(run.record.job_id, str(error)) for run in group]
            continue
        if not model.identified:
            notes.append(f"{name}: {'; '.join(model.notes)}")
        for run in group:
            predicted = float(model.predict(Columns.of([run.allocation])).iteration_seconds[0])
            level = run.seen.iteration_seconds / predicted
            jobs.append(_job(run, model.coefficients.at_level(level), begin, largest_growth))
    jobs.sort(key=lambda item: item.arrival_seconds)
    return Past(tuple(jobs), tuple(left_out), tuple(notes))


def _run(record: JobRecord) -> tuple[_Run | None, str]:
    """The usable data of a run, or the reason why the run cannot be used."""
    if record.phase is not Phase.SUCCEEDED:
        return None, f"it ended as {record.phase.value}"
    batch, dimension = record.features["batch_size"], record.features["embedding_dimension"]
    samples, seconds = record.samples_trained or 0.0, _training_seconds(record)
    for name, value in (
        ("batch size", batch), ("embedding dimension", dimension), ("samples trained", samples),
        ("training time", seconds),
    ):  # fmt: skip
        if not value > 0:
            return None, f"its run has no {name}"
    try:
        allocation = Allocation(**msgspec.structs.asdict(record.granted))
    except ScalingError as error:
        return None, str(error)
    own, dense_bytes = None, _DENSE_BYTES
    if record.shape_changes:
        # The time of the run is that of all its sizes together. A master's coefficients are per byte of the dense
        # parameters that it has counted.
        own, counted_bytes = read_coefficients(record.metrics), record.metrics.get(names.SCALING_DENSE_BYTES)
        if own is None or counted_bytes is None:
            changes = counted(record.shape_changes, "time")
            return None, f"its sizes changed {changes} while it ran, and its master has left no model of its speed"
        dense_bytes = int(counted_bytes)
    step = allocation.workers * batch * seconds / samples
    shape = ModelShape(batch_size=int(batch), dense_bytes=dense_bytes, embedding_dimension=int(dimension))
    seen = Observation(allocation=allocation, iteration_seconds=step, compute_seconds=_compute(record, step))
    return _Run(record, allocation, shape, seen, samples, own), ""


def _training_seconds(record: JobRecord) -> float:
    """Time in which its workers made steps, if its master has measured it; otherwise from start to end; 0: unknown."""
    if names.SECONDS not in record.metrics:
        # It was resumed, and its other figures are those of the last master.
        return 0.0
    counted = sum(record.metrics.get(name, 0.0) for name in _STEPPING_SECONDS)
    return counted or record.metrics[names.SECONDS]


def _compute(record: JobRecord, step: float) -> float | None:
    """Time of a step in which workers compute; None if it was not measured."""
    parts = {
        part: record.metrics.get(names.named(names.STEP_PART_SECONDS, part=part), 0.0)
        for part in ("pull", "compute", "push")
    }
    return step * parts["compute"] / sum(parts.values()) if parts["compute"] > 0 else None


def _job(run: _Run, coefficients: Coefficients, begin: float, growth: int) -> JobToRun:
    record, allocation = run.record, run.allocation
    return JobToRun(
        job_id=record.job_id,
        arrival_seconds=record.started_unix_seconds - begin,
        samples=run.samples,
        shape=run.shape,
        coefficients=coefficients,
        allocation=allocation,
        limits=Limits(
            workers=(1, growth * allocation.workers),
            parameter_servers=(1, growth * allocation.parameter_servers),
            worker_cores=(min(0.05, allocation.worker_cores), max(32.0, allocation.worker_cores)),
            parameter_server_cores=(
                min(0.05, allocation.parameter_server_cores),
                max(32.0, allocation.parameter_server_cores),
            ),
        ),
        team=record.team,
        features=features_of(record.job_name, run.shape, run.samples, record.architecture),
    )
