"""The parts of a launch request that decisions depend on: plain numbers, which do not change during the job."""

from __future__ import annotations

import uuid

import msgspec

from elastrec.checkpoints import new_record_uri
from elastrec.platform.master.pods.launch import LaunchRequest
from elastrec.platform.specs.elasticity import Elasticity
from elastrec.platform.specs.errors import FieldProblem, SpecError
from elastrec.platform.specs.job import Training
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.row_ranges import RowRanges
from elastrec.platform.specs.shape import Shape
from elastrec.platform.specs.splits import Positions


class JobPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The state machine's constants.

    Attributes:
        training, evaluation: the splits of both streams; a split has B · M rows (AntDT §V-C).
        shape: at the start.
        is_synchronous: bsp or ssp: the list of members matters.
        start_record: empty: none.
        older_start_records: used in this order if the start record is damaged.
        start_positions: of the start record, if the job begins at them; None: at the first row.
        slow_pod_moves: how many slow workers and servers the job moves to other nodes; 0: none.
        most_bad_rows: bad rows that all workers together may leave out; None: they judge them alone.
        relieves_hot_servers: whether buckets leave a hot server for others.
        most_server_cores: a server that is to have more is replaced, not resized in place
            (`JobSpec.most_server_cores`); None: never.
        most_memory_bytes: by role: maximum memory of a pod when memory is doubled after kills; roles that are not named
            keep their memory.
        kept_records: number of this job's records to which a rollback can return.
        deltas: number of periodic records in a row that build on the one before.
        record_template: URI of a record folder that was never used (see `phases.record_uri`).
        holder: a random text per journal, which identifies the terms of its master.
        exit_seconds: time in which pods may exit by themselves at the end.
        save_timeout_seconds, restore_timeout_seconds: without progress in writing or reading.
        migration_timeout_seconds: of a change of pods, without any progress (`stalls`).
    """

    job_id: str
    training: RowRanges
    evaluation: RowRanges
    shape: Shape
    virtual_buckets: int
    is_synchronous: bool
    start_record: str
    record_template: str
    save_interval_seconds: float
    lease_seconds: float
    save_timeout_seconds: float
    restore_timeout_seconds: float
    migration_timeout_seconds: float
    shard_attempts: int
    pod_restarts: int
    older_start_records: list[str] = []
    start_positions: Positions | None = None
    most_bad_rows: int | None = None
    slow_pod_moves: int = 0
    relieves_hot_servers: bool = True
    most_server_cores: float | None = None
    most_memory_bytes: dict[Role, int] = {}
    kept_records: int = 3
    deltas: int = 0
    exit_seconds: float = 10.0
    holder: str = ""

    @staticmethod
    def of(request: LaunchRequest) -> JobPlan:
        """The plan of a new job; two plans of one request differ in `record_template` and `holder`.

        Raises:
            SpecError: the job file or the positions inside are invalid.
            CheckpointError: the store's URI is not understood.
        """
        job = request.training_job
        spec = job.spec
        training = training_splits(spec.training, request.training_rows)
        return JobPlan(
            job_id=request.job_id,
            training=training,
            evaluation=RowRanges(rows=request.evaluation_rows, split_rows=training.split_rows),
            shape=Shape.of(spec.resources),
            virtual_buckets=spec.resources.virtual_buckets,
            is_synchronous=spec.training.consistency.mode != "async",
            start_record=request.start_record,
            older_start_records=request.older_start_records,
            start_positions=_positions(request.start_positions),
            most_bad_rows=spec.data.bad_rows.at_most if spec.data.bad_rows.policy == "skip" else None,
            slow_pod_moves=spec.faults.slow_pod_moves,
            relieves_hot_servers=spec.scaling.relieve_hot_servers,
            most_server_cores=spec.most_server_cores,
            most_memory_bytes=_most_memory(spec.scaling),
            kept_records=spec.checkpoint.keep,
            deltas=spec.checkpoint.deltas,
            record_template=new_record_uri(request.store, job.metadata.name, request.job_id, 0),
            save_interval_seconds=spec.checkpoint.interval,
            lease_seconds=spec.faults.lease,
            save_timeout_seconds=spec.faults.save_timeout,
            restore_timeout_seconds=spec.faults.restore_timeout,
            migration_timeout_seconds=spec.faults.migration_timeout,
            shard_attempts=spec.faults.shard_attempts,
            pod_restarts=spec.faults.pod_restarts,
            holder=uuid.uuid4().hex,
        )


def _most_memory(elasticity: Elasticity) -> dict[Role, int]:
    limits = {
        Role.WORKER: elasticity.maximum_worker_memory,
        Role.PARAMETER_SERVER: elasticity.maximum_parameter_server_memory,
    }
    return {role: most for role, most in limits.items() if most is not None}


def training_splits(training: Training, rows: int) -> RowRanges:
    """The splits of a job's training stream: B · M rows in a split (AntDT §V-C)."""
    return RowRanges(
        rows=rows,
        split_rows=training.batch_size * training.batches_per_shard,
        epochs=training.epochs,
        shuffle=training.shuffle,
        seed=training.seed,
    )


def _positions(text: str) -> Positions | None:
    try:
        return Positions.decode(text) if text else None
    except msgspec.MsgspecError as error:
        problem = FieldProblem("start_positions", f"{text[:200]!r} ({error})", "positions as a record keeps them")
        raise SpecError([problem], "the launch request") from None
