"""The resumption of a job by a master without a journal, from the records of an earlier master of the same job.

The positions in a record are the progress of each shard. They are valid for another launch of the job only if it has
the same rows of the same files in the same shards and the same order. The model may differ as between a job and its
start record (`checkpoints.mismatch`). The same holds for a periodic record of another job from which this one starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import msgspec
import structlog

from elastrec.checkpoints import DamagedRecordError, Record, RecordKind, compare, newest_records
from elastrec.platform.master.machine.events import ResumedFrom
from elastrec.platform.master.machine.plan import JobPlan, training_splits
from elastrec.platform.master.machine.recovery import CompleteRecord
from elastrec.platform.master.pods.launch import LaunchRequest
from elastrec.platform.master.reporting.unsent_metrics import read_result
from elastrec.platform.master.service.earlier_times import ATTRIBUTE as TIMES
from elastrec.platform.master.service.earlier_times import earlier_times
from elastrec.platform.specs.errors import CheckpointError, FieldProblem, SpecError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Role, TrainingMetrics
from elastrec.platform.specs.row_ranges import RowRanges
from elastrec.platform.specs.shape import PlacesChange, Shape, sizes_of_fields
from elastrec.platform.specs.splits import TRAINING_STREAM, Positions
from elastrec.platform.transport.messages.directive import PodOrders

log = structlog.get_logger(__name__)
ATTRIBUTE = "numbering"
"""Attribute of a record's manifest that holds its Numbering."""
_SHAPE = "shape"
_ORDERS = "orders"


class Numbering(msgspec.Struct, frozen=True, kw_only=True):
    """The fields on which the numbers of rows and shards depend; with equal values, positions refer to the same
    rows.

    Attributes:
        kept_together: the session column, if the rows of a session stay together in the shuffle of a shard; otherwise
            empty.
    """

    training_digest: str
    training_rows: int
    shard_rows: int
    epochs: int
    shuffle: bool
    seed: int
    kept_together: str = ""

    @property
    def splits(self) -> RowRanges:
        """The splits of the training stream."""
        return RowRanges(
            rows=self.training_rows,
            split_rows=self.shard_rows,
            epochs=self.epochs,
            shuffle=self.shuffle,
            seed=self.seed,
        )

    @staticmethod
    def of(request: LaunchRequest) -> Numbering:
        """The numbering of a launched job."""
        return Numbering.of_job(request.training_job, request.training_digest, request.training_rows)

    @staticmethod
    def of_job(job: TrainingJob, training_digest: str, training_rows: int) -> Numbering:
        """The numbering of a job, whose deduplication is groups or off, on a training manifest."""
        splits = training_splits(job.spec.training, training_rows)
        moves_sessions = splits.shuffle and not job.spec.deduplication.is_off
        return Numbering(
            training_digest=training_digest,
            training_rows=splits.rows,
            shard_rows=splits.split_rows,
            epochs=splits.epochs,
            shuffle=splits.shuffle,
            seed=splits.seed,
            kept_together=(job.spec.data.session or "") if moves_sessions else "",
        )


class KeptShape(msgspec.Struct, frozen=True, kw_only=True):
    """Attribute of a record's manifest: the sizes that the job's launch has named, and those that it had at the
    record.

    Attributes:
        most_workers: `spec.scaling.maximum_workers` of that launch; None: a version that did not keep it.
    """

    launched: Shape
    reached: Shape
    most_workers: int | None = None

    @staticmethod
    def attribute(request: LaunchRequest, reached: Shape | None) -> dict[str, str]:
        """For the manifest of a record."""
        if reached is None:
            return {}
        most_workers = request.training_job.spec.scaling.maximum_workers
        kept = KeptShape(launched=_named_sizes(request), reached=reached, most_workers=most_workers)
        return {_SHAPE: msgspec.json.encode(kept).decode()}


class KeptOrders(msgspec.Struct, frozen=True, kw_only=True):
    """Attribute of a record's manifest: the orders for all workers at the record, and the values of the job's launch
    that they replaced.

    Attributes:
        learning_rates: of rows and of dense parameters.
    """

    orders: PodOrders
    batch_size: int
    learning_rates: tuple[float, float]

    @staticmethod
    def attribute(request: LaunchRequest, orders: PodOrders | None) -> dict[str, str]:
        """For the manifest of a record."""
        if orders is None:
            return {}
        batch_size, rates = _ordered_values(request)
        kept = KeptOrders(orders=orders, batch_size=batch_size, learning_rates=rates)
        return {_ORDERS: msgspec.json.encode(kept).decode()}


def _named_sizes(request: LaunchRequest) -> Shape:
    # Start-up sizes from similar jobs may differ between two launches of the same job file.
    return request.named_sizes or Shape.of(request.training_job.spec.resources)


def _ordered_values(request: LaunchRequest) -> tuple[int, tuple[float, float]]:
    spec = request.training_job.spec
    return spec.training.batch_size, (spec.optimizers.rows.learning_rate, spec.optimizers.dense.learning_rate)


_Kept = TypeVar("_Kept", KeptShape, KeptOrders, dict[str, float])


def _kept(record: Record, attribute: str, kind: type[_Kept], consequence: str) -> _Kept | None:
    """An attribute of a record; None if the record does not have it, or if another version of elastrec wrote it in a
    form that this one does not know. That is no damage: the rows and the positions of the record are used."""
    text = record.manifest.attributes.get(attribute, "")
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        log.warning(
            "record_attribute_ignored", record=record.uri, attribute=attribute, reason=str(error),
            consequence=consequence,
        )  # fmt: skip
        return None


def _shape_of(record: Record, request: LaunchRequest) -> Shape | None:
    """The shape with which the launch continues from a record; None: the record does not say it.

    It is that of the job at the record, except for fields in which this launch differs from the one before, and fields
    that its caller has named, also with the number of the launch before: the job may have been scaled since.
    With the start-up sizes, servers would have to hold rows again for which they were enlarged, also if a person names
    another number of workers. A maximum number of workers that was lowered since is kept; one that was in force before
    is not applied again, because a person may have exceeded it on purpose.
    """
    kept = _kept(record, _SHAPE, KeptShape, "the job begins with the sizes of this launch")
    if kept is None:
        return None
    start = Shape.of(request.training_job.spec.resources)
    anew = _named_sizes(request).change_from(kept.launched)
    shape = kept.reached.changed({role: change.earlier(start[role]) for role, change in anew.items()})
    # Whatever the record and similar jobs say.
    named = [field for field in request.named_fields if _is_named(record, request, field)]
    shape = shape.changed(sizes_of_fields(_named_sizes(request), named))
    most_workers = request.training_job.spec.scaling.maximum_workers
    if kept.most_workers is None or not most_workers < shape[Role.WORKER].count:
        return shape
    if most_workers >= kept.most_workers and not _is_named(record, request, "spec.scaling.maximum_workers"):
        return shape
    return shape.changed({Role.WORKER: PlacesChange(count=most_workers)})


def _is_named(record: Record, request: LaunchRequest, *fields: str) -> bool:
    """Whether the caller of this launch has named one of the fields, and the record is of a launch before. What this
    launch has recorded itself is newer than the call."""
    is_earlier = record.manifest.term <= request.named_after_term
    return is_earlier and any(field in request.named_fields for field in fields)


def _orders_of(record: Record, request: LaunchRequest) -> PodOrders | None:
    """The orders for all workers with which the launch continues from a record; None: there are none.

    A value that this launch names otherwise than the one before, or that its caller has named, replaces the ordered
    one.
    """
    kept = _kept(record, _ORDERS, KeptOrders, "workers train as in the job file; order them again with elastrec order")
    if kept is None:
        return None
    batch_size, rates = _ordered_values(request)
    has_own_size = batch_size != kept.batch_size or _is_named(record, request, "spec.training.batch_size")
    rate_fields = ("spec.optimizers.rows.learning_rate", "spec.optimizers.dense.learning_rate")
    has_own_rates = rates != kept.learning_rates or _is_named(record, request, *rate_fields)
    orders = PodOrders(
        version=0,
        batch_size=None if has_own_size else kept.orders.batch_size,
        learning_rate_scale=1.0 if has_own_rates else kept.orders.learning_rate_scale,
    )
    return None if orders == PodOrders(version=0) else orders


_FIELDS = {
    "training_digest": "spec.data (digest of the training files)",
    "training_rows": "spec.data (training rows)",
    "shard_rows": "spec.training.batch_size times batches_per_shard",
    "epochs": "spec.training.epochs",
    "shuffle": "spec.training.shuffle",
    "seed": "spec.training.seed",
    "kept_together": "spec.deduplication (the column whose rows a shuffle keeps together; '' without it)",
}


def numbering_of(record: Record) -> Numbering | None:
    """The numbering of a record's positions; None if the record does not contain it."""
    text = record.manifest.attributes.get(ATTRIBUTE, "")
    return msgspec.json.decode(text, type=Numbering) if text else None


def _stored_fields(record: Record) -> frozenset[str]:
    """The fields of the numbering that a record contains; those of earlier versions lack some."""
    return frozenset(msgspec.json.decode(record.manifest.attributes.get(ATTRIBUTE, "") or "{}"))


_OTHERWISE = "train from the beginning: with another run key, or spec.continual.resume: never"


def check_numbering(record: Record, numbering: Numbering, otherwise: str = _OTHERWISE) -> None:
    """Refuses positions that would refer to other rows.

    Args:
        otherwise: an alternative to restoring the field, for the message.

    Raises:
        SpecError: names every field that differs.
    """
    recorded, stored = numbering_of(record), _stored_fields(record)
    problems = []
    for name, text in _FIELDS.items():
        if recorded is not None and getattr(recorded, name) == getattr(numbering, name):
            continue
        if name in stored:
            allowed, remedy = f"{getattr(recorded, name)!r}, as when {record.uri} was saved", "put it back; or "
        else:
            # Of an earlier version: what was in force then cannot be named, nor be put back.
            allowed, remedy = f"unknown: {record.uri} does not say what it was", ""
        problems.append(FieldProblem(text, repr(getattr(numbering, name)), allowed, f"{remedy}{otherwise}"))
    if problems:
        raise SpecError(problems, "the job, compared with the record that it continues from")


class StartPositions(msgspec.Struct, frozen=True):
    """The beginning of a job that starts from a periodic record, which may belong to another job.

    Attributes:
        positions: where it begins, as in the record; empty: at the first row, using only the weights.
        note: which of the two, and why, for people.
    """

    positions: str
    note: str


def start_positions(record: Record, job: TrainingJob, training_digest: str, training_rows: int) -> StartPositions:
    """With the same files, the job continues at the record's positions. With other files, it only uses the weights.

    Raises:
        SpecError: the files are the same, but rows are numbered differently, so it is unclear which rows are trained.
        CheckpointError: the positions are damaged, or the store could not be asked.
    """
    recorded, numbering = numbering_of(record), Numbering.of_job(job, training_digest, training_rows)
    if job.spec.continual.resume == "never":
        return StartPositions("", _weights_alone(record, "spec.continual.resume is never"))
    if recorded is None:
        return StartPositions("", _weights_alone(record, "it does not say of which files its positions are"))
    if recorded.training_digest != training_digest:
        return StartPositions("", _weights_alone(record, "its positions are of other files"))
    check_numbering(record, numbering, "train all rows on its weights: spec.continual.resume: never")
    covered, total = covered_rows(record, numbering), numbering.splits.total_rows
    return StartPositions(
        record.positions().decode(),
        f"begins at the positions of {record.uri}: {covered:,} of {total:,} samples are trained",
    )


def covered_rows(record: Record, numbering: Numbering) -> int:
    """Rows that are in the model of a record, each counted once per epoch: its position in the data.

    Raises:
        DamagedRecordError: its positions cannot be read.
    """
    try:
        positions = Positions.decode(record.positions()).of(TRAINING_STREAM)
        return numbering.splits.covered_rows(positions) if positions is not None else 0
    except msgspec.MsgspecError as error:
        raise DamagedRecordError(f"{record.uri}: its positions cannot be read: {error}") from error


def _weights_alone(record: Record, reason: str) -> str:
    return f"begins with the weights of {record.uri} at the first row: {reason}"


def _records(request: LaunchRequest) -> Iterator[Record]:
    """Undamaged records of the job's unfinished runs, the newest one first."""
    records = newest_records(request.store, request.training_job.metadata.name, job_id=request.job_id)
    return (record for record in records if record.manifest.term > request.earlier_terms)


def own_records(request: LaunchRequest, count: int, *, with_bases: bool = False) -> list[Record]:
    """The undamaged records that belong to this run of the job, the newest one first.

    Args:
        count: at most so many; `with_bases`: and those on which they build.

    Raises:
        CheckpointError: the store could not be asked.
        SpecError: the positions or the model of the newest one are not valid for the present launch.
    """
    records, bases = list[Record](), set[str]()
    for record in _records(request):
        if record.name in bases or len(records) < count:
            records.append(record)
            bases.discard(record.name)
            if with_bases and record.manifest.base:
                bases.add(record.manifest.base)
        if not bases and len(records) >= count:
            break
    numbering = Numbering.of(request)
    if records:
        check_numbering(records[0], numbering)
        compare(records[0].manifest.model, request.training_job).raise_if_refused(_OTHERWISE)
    return [record for record in records if numbering_of(record) == numbering and _fits(record, request)]


def _fits(record: Record, request: LaunchRequest) -> bool:
    return not compare(record.manifest.model, request.training_job).refused


def finished_on_other_rows(request: LaunchRequest) -> Record | None:
    """The final record of a run of the job that was trained to its end on rows of another numbering; None: there is
    none. Nothing of such a run is left to be continued, so a launch on other rows trains them from the first one.

    Raises:
        CheckpointError: the store could not be asked.
    """
    newest = next(_records(request), None)
    if newest is None or newest.manifest.kind is not RecordKind.FINAL or numbering_of(newest) == Numbering.of(request):
        return None
    return newest


def resumed_from(request: LaunchRequest, plan: JobPlan) -> ResumedFrom | None:
    """The records from which a job without a journal continues; None if there are none.

    Raises:
        CheckpointError, SpecError: as in `own_records`.
    """
    complete: list[CompleteRecord] = []
    newest: Record | None = None
    for record in own_records(request, plan.kept_records, with_bases=True):
        try:
            positions = Positions.decode(record.positions())
        except (DamagedRecordError, msgspec.MsgspecError) as error:
            log.warning("checkpoint_record_skipped", record=record.uri, reason=str(error))
            continue
        newest = newest or record
        is_final = record.manifest.kind is RecordKind.FINAL
        complete.append(CompleteRecord(record.uri, positions, is_final, record.manifest.step, record.base_uri))
    if newest is None:
        return None
    left = _left(request)
    times = _kept(newest, TIMES, dict[str, float], "the time before is not counted")
    return ResumedFrom(
        records=complete[::-1],
        trained_rows=left.samples_trained if left is not None else 0,
        shape=_shape_of(newest, request),
        orders=_orders_of(newest, request),
        times=earlier_times(request, times, has_ended=left is not None),
    )


def _left(request: LaunchRequest) -> TrainingMetrics | None:
    """The result of an earlier master of this run; None if none has ended by itself."""
    try:
        job_name = request.training_job.metadata.name
        return read_result(request.store, job_name, request.job_id, request.earlier_terms)
    except CheckpointError as error:
        log.warning("earlier_result_not_read", job=request.job_id, reason=str(error))
        return None
