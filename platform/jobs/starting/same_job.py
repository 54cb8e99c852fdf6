"""Compares the job that runs under an id with the job of the caller, before any request to its master."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec

from elastrec.platform.clusters.pods import PodStatus
from elastrec.platform.jobs.starting.kept_launch import launch_of
from elastrec.platform.jobs.types import Prepared
from elastrec.platform.specs.errors import CheckpointError, OtherJobError, SpecError
from elastrec.platform.specs.text.loading import job_from_json
from elastrec.platform.specs.text.uris import masked

JOB_LABEL = "elastrec.io/job-digest"
"""Label of a master's pod: digest of the job file with which the job was launched."""
_NAMED = 8


def job_digest(prepared: Prepared) -> str:
    """Digest of the job file as it will run; it does not depend on passwords."""
    return hashlib.sha256(masked(prepared.job_json).encode()).hexdigest()[:16]


def refuse_other_job(master: PodStatus, prepared: Prepared) -> None:
    """Checks that the master's job has the job file of `prepared`. Jobs without a recorded digest pass.

    Raises:
        OtherJobError: the job has another job file; names the fields that differ.
    """
    digest = master.labels.get(JOB_LABEL, "")
    if not digest or digest == job_digest(prepared):
        return
    job_id = prepared.job_id
    raise OtherJobError(
        f"job {job_id} runs already, and with another job file: {_differences(prepared)}. To train this job file "
        f"instead, end the one that runs with `elastrec stop {job_id}` and launch again; to go on with the one that "
        "runs, restore its job file"
    )


def _differences(prepared: Prepared) -> str:
    asked = job_from_json(prepared.job_json)
    try:
        kept = launch_of(asked.spec.checkpoint.store, asked.metadata.name, prepared.job_id)
    except (CheckpointError, SpecError) as error:
        return f"which fields differ is unknown ({error})"
    if kept is None:
        return (
            f"which fields differ is unknown (the store {masked(asked.spec.checkpoint.store)} does not know its launch)"
        )
    runs, described = (
        dict(_flat(msgspec.json.decode(masked(launch.job_json)))) for launch in (kept.prepared, prepared)
    )
    differences = [
        f"{path} is {_shown(runs, path)} there and {_shown(described, path)} here"
        for path in sorted(runs.keys() | described.keys())
        if runs.get(path) != described.get(path)
    ]
    more = f" and {len(differences) - _NAMED} fields more" if len(differences) > _NAMED else ""
    return "; ".join(differences[:_NAMED]) + more or "which fields differ is unknown (it was launched twice at once)"


def _flat(content: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(content, dict) and content:
        for key, value in content.items():
            yield from _flat(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, content


def _shown(fields: dict[str, Any], path: str) -> str:
    return msgspec.json.encode(fields[path]).decode() if path in fields else "absent"
