"""Prepares the resumption of a job: finds its launch, removes its remains from the cluster, and checks it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from elastrec.checkpoints import concluded_term, newest_term
from elastrec.platform.history.records import TAG_AIRFLOW_LOG
from elastrec.platform.jobs.starting.kept_launch import KeptLaunch, kept_launch, launch_of
from elastrec.platform.jobs.starting.launching import finish
from elastrec.platform.jobs.starting.preparation import prepare, resolved
from elastrec.platform.jobs.starting.same_job import flat
from elastrec.platform.jobs.surroundings import DEFAULT_STORE, Platform
from elastrec.platform.jobs.types import Interval, Prepared
from elastrec.platform.jobs.watching.masters import pod_of_master
from elastrec.platform.jobs.watching.observation import observe
from elastrec.platform.master.reporting.unsent_metrics import read_result
from elastrec.platform.specs.errors import FieldProblem, JobNotFoundError, SpecError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.specs.text.loading import job_from_json, load_job
from elastrec.platform.specs.text.uris import is_masked, masked


def resumable(platform: Platform, job: str, store: str = DEFAULT_STORE) -> KeptLaunch:
    """The launch of a job that can be resumed. The tag of its task's log is empty: that task does not wait for it now.

    Args:
        job: its id, or its name, which means the job of that name that was launched last.
        store: URI of its checkpoint store; relative as in job files.

    Raises:
        SpecError: the store has no such job (the message names its jobs), or the job is finished.
        CheckpointError: the store could not be asked, or the launch cannot be read.
    """
    where = resolved(store, platform.work_uri)
    launch = kept_launch(where, job)
    name = job_from_json(launch.prepared.job_json).metadata.name
    if concluded_term(where, name, launch.job_id) > launch.earlier_terms:
        problem = FieldProblem(
            "JOB",
            f"{launch.job_id!r} (launched {launch.launched})",
            "a job that has failed or was stopped; this one has succeeded and its model is published",
            "`elastrec run` trains another one",
        )
        raise SpecError([problem], "the command line")
    tags = launch.prepared.run_tags | {TAG_AIRFLOW_LOG: ""}
    return msgspec.structs.replace(launch, prepared=msgspec.structs.replace(launch.prepared, run_tags=tags))


def prepare_again(
    platform: Platform, kept: KeptLaunch, overrides: Mapping[str, Any], store: str = DEFAULT_STORE
) -> Prepared:
    """`prepare` for a job that was launched before, on the same days and with the store in which it was found.

    Args:
        overrides: values by dotted path, for data or sizes that differ here.

    Raises:
        SpecError, DataError: as in `prepare`; or the password of a URI is missing, because it is not stored.
    """
    where = resolved(store, platform.work_uri)
    content = job_from_json(kept.prepared.job_json).model_dump(mode="json", by_alias=True)
    job = load_job(content, {"spec.checkpoint.store": where, **overrides})
    _refuse_hidden(kept, job.model_dump(mode="json", by_alias=True))
    prepared = prepare(platform, job, kept.job_id, kept.prepared.interval)
    return msgspec.structs.replace(prepared, run_tags=kept.prepared.run_tags)


def named_fields(overrides: Mapping[str, Any]) -> frozenset[str]:
    """The fields of a job file that overrides name, by dotted path; an override may be a section."""
    return frozenset(path for name, value in overrides.items() for path, _ in flat(value, name))


def attached(
    platform: Platform, kept: KeptLaunch, overrides: Mapping[str, Any], store: str = DEFAULT_STORE
) -> Prepared:
    """The prepared job of a launch that runs, with the passwords that the caller's URIs have.

    Args:
        overrides: URIs with their passwords, by dotted path.
        store: as in `prepare_again`.

    Raises:
        SpecError: an override changes the job, or the password of a URI is missing, because it is not stored. The
            evaluator needs it at the end.
    """
    fields = dict(flat(msgspec.json.decode(kept.prepared.job_json)))
    for path, value in overrides.items():
        there = fields.get(path)
        if not (isinstance(there, str) and is_masked(there) and masked(str(value)) == there):
            remedy = f"stop it first: elastrec stop {kept.job_id}"
            if path.startswith("spec.resources."):
                remedy += f"; or change its pods: elastrec scale {kept.job_id}"
            problem = FieldProblem("--set", repr(f"{path}={value}"), "nothing, since the job runs", remedy)
            raise SpecError([problem], "the command line")
    given = [resolved(store, platform.work_uri), platform.work_uri, *(str(value) for value in overrides.values())]
    known = {masked(uri): uri for uri in given if masked(uri) != uri}
    job = _with_passwords(msgspec.json.decode(kept.prepared.job_json), known)
    _refuse_hidden(kept, job)
    plain = _with_passwords(msgspec.to_builtins(kept.prepared), known)
    return msgspec.convert({**plain, "job_json": msgspec.json.encode(job).decode()}, Prepared)


def _with_passwords(value: Any, known: Mapping[str, str]) -> Any:
    """Replaces all texts that are one of these masked URIs, or are below it."""
    if isinstance(value, dict):
        return {key: _with_passwords(item, known) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_passwords(item, known) for item in value]
    if isinstance(value, str):
        for hidden, uri in known.items():
            if value == hidden or value.startswith(f"{hidden.rstrip('/')}/"):
                return uri.rstrip("/") + value[len(hidden.rstrip("/")) :] if value != hidden else uri
    return value


def _refuse_hidden(kept: KeptLaunch, job: Mapping[str, Any]) -> None:
    """Raises SpecError if the password of a URI in the job file is not known."""
    hidden = [
        FieldProblem(path, repr(value), "a URI with its password, which is not kept", f"--set {path}=URI")
        for path, value in flat(job)
        if isinstance(value, str) and is_masked(value)
    ]
    if hidden:
        raise SpecError(hidden, f"the launch of job {kept.job_id}")


def days_to_continue(platform: Platform, job: TrainingJob, job_id: str) -> Interval | None:
    """The days of the job that a launch under this id attaches to or continues, so that it is not compared with days
    that have arrived since; None if there is no such job, or its rows have no days.

    Raises:
        CheckpointError: the store could not be asked, or the launch cannot be read.
    """
    place = (resolved(job.spec.checkpoint.store, platform.work_uri), job.metadata.name, job_id)
    kept = launch_of(*place)
    if kept is None:
        return None
    newest, left = newest_term(*place), read_result(*place, kept.earlier_terms)
    has_begun = newest is not None and newest.term > kept.earlier_terms >= concluded_term(*place)
    begins_anew = job.spec.continual.resume == "never" and (left is None or left.phase is not Phase.SUCCEEDED)
    if not has_begun or (begins_anew and pod_of_master(platform, job_id) is None):
        return None
    return kept.prepared.interval if kept.prepared.interval.start else None


def remove_unsuccessful(platform: Platform, job_id: str) -> bool:
    """Removes a failed or stopped job from the cluster; returns whether the cluster still has the job, because it is
    running."""
    try:
        phase = observe(platform, job_id).metrics.phase
    except JobNotFoundError:
        return False
    if phase in (Phase.FAILED, Phase.STOPPED):
        finish(platform, job_id)
        return False
    return True
