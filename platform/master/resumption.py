"""What a master without a journal continues from: the records that an earlier master of the same job has left.

The positions of a record say how far which shard was. They fit another launch of the job only if that numbers the same
rows of the same files in the same shards and the same order; the model itself is compared elsewhere
(`checkpoints.mismatch`).
"""

from __future__ import annotations

from itertools import islice

import msgspec
import structlog

from elastrec.checkpoints import DamagedRecordError, Record, newest_records
from elastrec.platform.master.events import ResumedFrom
from elastrec.platform.master.launch import LaunchRequest
from elastrec.platform.master.leavings import read_result
from elastrec.platform.master.phases import NUMBERS_PER_TERM
from elastrec.platform.master.plan import JobPlan
from elastrec.platform.master.recovery import CompleteRecord
from elastrec.platform.master.shards import Positions
from elastrec.platform.specs.errors import CheckpointError, FieldProblem, SpecError

log = structlog.get_logger(__name__)
ATTRIBUTE = "numbering"
"""Attribute of a record's manifest that holds its Numbering."""


class Numbering(msgspec.Struct, frozen=True, kw_only=True):
    """By what rows and shards are numbered: positions of an equal one mean the same rows."""

    training_digest: str
    training_rows: int
    shard_rows: int
    epochs: int
    shuffle: bool
    seed: int

    @staticmethod
    def of(request: LaunchRequest) -> Numbering:
        """The numbering of a launched job."""
        training = request.training_job.spec.training
        return Numbering(
            training_digest=request.training_digest,
            training_rows=request.training_rows,
            shard_rows=training.batch_size * training.batches_per_shard,
            epochs=training.epochs,
            shuffle=training.shuffle,
            seed=training.seed,
        )


_FIELDS = {
    "training_digest": "spec.data (digest of the training files)",
    "training_rows": "spec.data (training rows)",
    "shard_rows": "spec.training.batch_size times batches_per_shard",
    "epochs": "spec.training.epochs",
    "shuffle": "spec.training.shuffle",
    "seed": "spec.training.seed",
}


def numbering_of(record: Record) -> Numbering | None:
    """The numbering that a record's positions belong to; None: the record does not say."""
    text = record.manifest.attributes.get(ATTRIBUTE, "")
    return msgspec.json.decode(text, type=Numbering) if text else None


def check_numbering(record: Record, numbering: Numbering) -> None:
    """Refuses positions that would name other rows.

    Raises:
        SpecError: names every field that differs.
    """
    there = numbering_of(record)
    problems = [
        FieldProblem(
            text,
            repr(getattr(numbering, name)),
            "unknown: the record does not say"
            if there is None
            else f"{getattr(there, name)!r}, as when {record.uri} was saved",
            "put it back; or train from the beginning: with another run key, or spec.continual.resume: never",
        )
        for name, text in _FIELDS.items()
        if there is None or getattr(there, name) != getattr(numbering, name)
    ]
    if problems:
        raise SpecError(problems, "the job, compared with the record that it continues from")


def own_records(request: LaunchRequest, count: int) -> list[Record]:
    """The newest undamaged records of the job, the newest one first, that belong to this run of it.

    Raises:
        CheckpointError: the store could not be asked.
        SpecError: the positions of the newest one do not fit the job as it was launched now.
    """
    found = newest_records(request.store, request.training_job.metadata.name, job_id=request.job_id)
    records = list(islice((record for record in found if record.manifest.term > request.earlier_terms), count))
    numbering = Numbering.of(request)
    if records:
        check_numbering(records[0], numbering)
    return [record for record in records if numbering_of(record) == numbering]


def resumed_from(request: LaunchRequest, plan: JobPlan) -> ResumedFrom | None:
    """What a job that has no journal continues from; None: there is nothing.

    Raises:
        CheckpointError, SpecError: as of `own_records`.
    """
    complete = []
    for record in own_records(request, plan.kept_records):
        try:
            positions = msgspec.json.decode(record.positions(), type=Positions)
        except (DamagedRecordError, msgspec.MsgspecError) as error:
            log.warning("checkpoint_record_skipped", record=record.uri, reason=str(error))
            continue
        is_final = record.manifest.kind == "final"
        complete.append(CompleteRecord(record.uri, positions, is_final, record.manifest.step))
    if not complete:
        return None
    return ResumedFrom(records=complete[::-1], trained_rows=_trained(request))


def _trained(request: LaunchRequest) -> int:
    """Rows that earlier masters have trained, where the last of them could still say so; else 0."""
    try:
        left = read_result(request.store, request.training_job.metadata.name, request.job_id)
    except CheckpointError as error:
        log.warning("earlier_result_not_read", job=request.job_id, reason=str(error))
        return 0
    # What a run that is over has left says nothing about this one.
    of_this_run = left is not None and left.generation >= request.earlier_terms * NUMBERS_PER_TERM
    return left.samples_trained if left is not None and of_this_run else 0
