"""Compares the job that runs or was trained under an id with the job of the caller, before any request to its
master."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec

from elastrec.platform.clusters.pods import PodStatus
from elastrec.platform.jobs.starting.kept_launch import KeptLaunch, last_launch
from elastrec.platform.jobs.starting.named_settings import scale_command
from elastrec.platform.jobs.types import Prepared
from elastrec.platform.specs.errors import OtherJobError
from elastrec.platform.specs.shape import Shape
from elastrec.platform.specs.text.loading import job_from_json
from elastrec.platform.specs.text.uris import masked

JOB_LABEL = "elastrec.io/job-digest"
"""Label of a master's pod: digest of the job file with which the job was launched."""
_NAMED = 8


def job_digest(prepared: Prepared) -> str:
    """Digest of the job file as it will run; it does not depend on passwords."""
    return hashlib.sha256(masked(prepared.job_json).encode()).hexdigest()[:16]


def refuse_other_job(master: PodStatus, prepared: Prepared, kept: KeptLaunch | None) -> None:
    """Checks that the master's job has the job file of `prepared`, and its days. Jobs without a recorded digest, or
    without a recorded launch, pass.

    Args:
        kept: the job's last launch (`last_launch`).

    Raises:
        OtherJobError: the job has another job file, or other days; names what differs.
    """
    digest, job_id = master.labels.get(JOB_LABEL, ""), prepared.job_id
    if digest and digest != job_digest(prepared):
        scale = "" if kept is None else scale_command(job_id, _sizes(prepared).change_from(_sizes(kept.prepared)))
        raise OtherJobError(
            f"job {job_id} runs already, and with another job file: {_differences(kept, prepared)}. To train this job "
            f"file instead, end the one that runs with `elastrec stop {job_id}` and launch again; to go on with the "
            f"one that runs, restore its job file{f', and to change its pods: `{scale}`' if scale else ''}"
        )
    if kept is not None and kept.prepared.interval != prepared.interval:
        raise OtherJobError(
            f"job {job_id} runs already, and {_other_days(kept, prepared)}. To train these days, use another run key, "
            f"or end the one that runs with `elastrec stop {job_id}` and launch again"
        )


def refuse_other_training(prepared: Prepared) -> None:
    """Checks that a job that was trained, and whose model is not published, had the job file and the days of
    `prepared`. Jobs without a recorded launch pass.

    Raises:
        OtherJobError: as in `refuse_other_job`.
        CheckpointError: the store could not be asked, or the launch cannot be read.
    """
    kept = last_launch(prepared)
    if kept is None:
        return
    what = ""
    if job_digest(kept.prepared) != job_digest(prepared):
        what = f"with another job file: {_differences(kept, prepared)}"
    elif kept.prepared.interval != prepared.interval:
        what = _other_days(kept, prepared)
    if what:
        raise OtherJobError(
            f"job {prepared.job_id} is trained already, and {what}. To publish that model, restore its job file and "
            f"its days, or call `elastrec resume {prepared.job_id}`; to train this job, use another run key"
        )


def _sizes(prepared: Prepared) -> Shape:
    return Shape.of(job_from_json(prepared.job_json).spec.resources)


def _other_days(kept: KeptLaunch, prepared: Prepared) -> str:
    there, here = (each.interval.in_words() for each in (kept.prepared, prepared))
    return f"on other days: {there}, there and {here}, here"


def _differences(kept: KeptLaunch | None, prepared: Prepared) -> str:
    if kept is None:
        store = masked(job_from_json(prepared.job_json).spec.checkpoint.store)
        return f"which fields differ is unknown (the store {store} does not know its launch)"
    runs, described = (dict(flat(msgspec.json.decode(masked(launch.job_json)))) for launch in (kept.prepared, prepared))
    differences = [
        f"{path} is {_shown(runs, path)} there and {_shown(described, path)} here"
        for path in sorted(runs.keys() | described.keys())
        if runs.get(path) != described.get(path)
    ]
    more = f" and {len(differences) - _NAMED} fields more" if len(differences) > _NAMED else ""
    return "; ".join(differences[:_NAMED]) + more or "which fields differ is unknown (it was launched twice at once)"


def flat(content: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The fields of a job file by dotted path; lists count as one field."""
    if isinstance(content, dict) and content:
        for key, value in content.items():
            yield from flat(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, content


def _shown(fields: dict[str, Any], path: str) -> str:
    return msgspec.json.encode(fields[path]).decode() if path in fields else "absent"
