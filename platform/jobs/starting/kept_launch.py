"""The parameters of a job's launch, stored in its checkpoint store, so that the job can be resumed on another machine.

`launch.json` is next to the job's terms. It is written before the pod of a master is created, and replaced by the next
launch of the job. If two callers launch a job at the same time, the later write stays, even if the other caller created
the pod; fields on which row numbers depend are compared with the job's records anyway
(`master.resumption.check_numbering`). It contains no secrets: tracking server, tokens and passwords come from the
caller that resumes the job.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

import msgspec

from elastrec.checkpoints import Store, launched_jobs, open_store, read_launch, write_launch
from elastrec.platform.jobs.types import Allocation, Prepared
from elastrec.platform.specs.errors import CheckpointError, FieldProblem, SpecError
from elastrec.platform.specs.text.loading import job_from_json
from elastrec.platform.specs.text.some import some
from elastrec.platform.specs.text.uris import masked

FORMAT_VERSION = 1
_NAMED = 20


class KeptLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a job's last launch.

    Attributes:
        prepared: its manifests may not be reachable any more, and passwords in its URIs are masked.
        allocation: the start-up sizes.
        launched: ISO 8601, UTC.
        earlier_terms: terms up to this number belong to runs of the job that had ended before the launch.
        named_fields: as in `launching.launch_request`.
    """

    format_version: int = FORMAT_VERSION
    prepared: Prepared
    allocation: Allocation
    launched: str
    earlier_terms: int
    named_fields: list[str] = []

    @property
    def job_id(self) -> str:
        return self.prepared.job_id


def keep_launch(
    store: str, prepared: Prepared, allocation: Allocation, earlier_terms: int, named_fields: Collection[str] = ()
) -> None:
    """Stores the parameters of a launch.

    Raises:
        CheckpointError: the store refused.
    """
    # The address of MLflow's page differs on other machines.
    plain = _masked(msgspec.to_builtins(msgspec.structs.replace(prepared, page="")))
    kept = KeptLaunch(
        prepared=msgspec.convert(plain, Prepared),
        allocation=allocation,
        launched=datetime.now(UTC).isoformat(timespec="milliseconds"),
        earlier_terms=earlier_terms,
        named_fields=sorted(named_fields),
    )
    name = job_from_json(prepared.job_json).metadata.name
    write_launch(store, name, prepared.job_id, msgspec.json.format(msgspec.json.encode(kept), indent=2))


def _masked(value: Any) -> Any:
    """All texts in a value, masked."""
    if isinstance(value, dict):
        return {key: _masked(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_masked(item) for item in value]
    return masked(value) if isinstance(value, str) else value


def launch_of(store: str, name: str, job_id: str) -> KeptLaunch | None:
    """The last launch of a job; None if the store has none.

    Args:
        name: the job file's `metadata.name`.

    Raises:
        CheckpointError: the store could not be asked, or the launch cannot be read.
    """
    return _read(open_store(store), name, job_id)


def last_launch(prepared: Prepared) -> KeptLaunch | None:
    """The last launch of a prepared job, in the store of its job file; as `launch_of`."""
    job = job_from_json(prepared.job_json)
    return launch_of(job.spec.checkpoint.store, job.metadata.name, prepared.job_id)


def earlier_terms_of(prepared: Prepared) -> int | None:
    """What the last launch of a job says of its earlier terms; None if the job was never launched.

    Raises:
        CheckpointError: the store could not be asked, or the launch cannot be read.
    """
    launch = last_launch(prepared)
    return None if launch is None else launch.earlier_terms


def kept_launch(store: str, job: str) -> KeptLaunch:
    """The launch of a job by its id, or the latest launch of a job with the given name.

    Raises:
        SpecError: the store has no such job; the message names its jobs.
        CheckpointError: the store could not be asked, or the launch cannot be read.
    """
    opened = open_store(store)
    names = opened.folders()
    for name in names:
        if (launch := _read(opened, name, job)) is not None:
            return launch
    if job in names:
        launches = [launch for job_id in launched_jobs(opened, job) if (launch := _read(opened, job, job_id))]
        if launches:
            return max(launches, key=lambda launch: launch.launched)
    shown = [f"{job_id} (of {name})" for name, ids in launched(store).items() for job_id in ids]
    there = f": {some(shown, _NAMED, last=True)}" if shown else " (there are none)"
    allowed = f"a job of {opened.uri}, by its id or its name{there}"
    problem = FieldProblem("JOB", repr(job), allowed, "--store names another checkpoint store")
    raise SpecError([problem], "the command line")


def launched(store: str) -> dict[str, list[str]]:
    """Ids of the jobs that were launched with a store, by job name.

    Raises:
        CheckpointError: the store could not be asked.
    """
    opened = open_store(store)
    return {name: launched_jobs(opened, name) for name in opened.folders()}


def _read(store: Store, job_name: str, job_id: str) -> KeptLaunch | None:
    data = read_launch(store, job_name, job_id)
    if data is None:
        return None
    where = f"{store.uri}: the launch of job {job_id}"
    try:
        version = msgspec.json.decode(data, type=dict[str, msgspec.Raw]).get("format_version", msgspec.Raw(b"null"))
        if bytes(version).strip() != str(FORMAT_VERSION).encode():
            raise CheckpointError(
                f"{where} has format {bytes(version).decode()}; this version of elastrec reads {FORMAT_VERSION} alone; "
                "launch the job with its job file and --run-key"
            )
        return msgspec.json.decode(data, type=KeptLaunch)
    except msgspec.MsgspecError as error:
        raise CheckpointError(f"{where} cannot be read: {error}; launch it with its job file and --run-key") from error
