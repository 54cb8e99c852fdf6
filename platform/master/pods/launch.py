"""The launch parameters of a master, and the exact pods of a job. Pure: this module makes no requests.

`elastrec render` prints the results of these functions; launches and masters pass the same values to a cluster.
"""

from __future__ import annotations

from typing import Any

import msgspec
from pydantic import ValidationError

from elastrec.platform.clusters import ClusterConfig, encode_config
from elastrec.platform.clusters.pods import MemoryVolume, Placement, PodSize, PodSpec, RestartPolicy
from elastrec.platform.specs import environment
from elastrec.platform.specs.elasticity import PodResources
from elastrec.platform.specs.errors import FieldProblem, SpecError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.shape import Shape
from elastrec.platform.specs.splits import EVALUATION_STREAM, TRAINING_STREAM, ManifestStream
from elastrec.platform.specs.text.uris import masked
from elastrec.platform.transport.security import TlsConfig

TEAM_LABEL = "elastrec.io/team"
"""Label of a pod: the team whose share of the cluster it uses."""
_SHORT_ROLE = {Role.MASTER: "master", Role.WORKER: "worker", Role.PARAMETER_SERVER: "ps", Role.EVALUATOR: "evaluator"}
_MODULE = {
    Role.MASTER: "elastrec.platform.master",
    Role.WORKER: "elastrec.trainers.worker",
    Role.PARAMETER_SERVER: "elastrec.trainers.parameter_server",
}
# A master stops its pods before it ends; a worker finishes its step; a server's successor starts and takes over.
_GRACE_SECONDS = {Role.MASTER: 30.0, Role.WORKER: 10.0, Role.PARAMETER_SERVER: 60.0}


class LaunchRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All parameters of a master; passed as the file `launch.json` of its pod.

    Attributes:
        job_id: unique per job; at most 50 characters of `[a-z0-9-]`; every pod's name begins with it.
        job: a TrainingJob as plain JSON values, with the start-up sizes.
        named_sizes: those in the job file, if similar jobs may have led to other start-up sizes; None: those of `job`.
        named_fields: fields of the job file, by dotted path, that the caller of this launch has named, unlike those
            that come from the launch before; records with terms up to `named_after_term` are of earlier launches.
        training_manifest, evaluation_manifest: URIs of data manifests; the evaluation's may be empty.
        training_rows, evaluation_rows: rows of those manifests.
        store: URI of the checkpoint store; records go into `{store}/{job name}/records`.
        start_record: URI of the record to start from; empty: none.
        older_start_records: URIs of alternatives, in this order, if that record is damaged.
        start_positions: of the start record, if the job begins at them; empty: at the first row.
        training_digest: of the training manifest, to check whether positions of another launch are valid.
        earlier_terms: terms up to this number belong to finished runs of the job, which are not continued.
        data_interval: ISO start and end of the data, for people and for history.
        tracking_uri: MLflow's; empty: no history.
        run_id: the MLflow run; empty: it is set later (`NameRun`).
        linger_seconds: how long the master answers after the end if it does not get FinishJob.
    """

    job_id: str
    job: dict[str, Any]
    training_manifest: str
    training_rows: int
    store: str
    evaluation_manifest: str = ""
    evaluation_rows: int = 0
    start_record: str = ""
    older_start_records: list[str] = []
    start_positions: str = ""
    training_digest: str = ""
    earlier_terms: int = 0
    data_interval: tuple[str, str] = ("", "")
    run_id: str = ""
    tracking_uri: str = ""
    linger_seconds: float = 600.0
    named_sizes: Shape | None = None
    named_fields: list[str] = []
    named_after_term: int = 0

    @staticmethod
    def of(job: TrainingJob, **fields: Any) -> LaunchRequest:
        """A request for a validated job; `fields` are the other attributes."""
        return LaunchRequest(job=job.model_dump(mode="json", by_alias=True), **fields)

    @property
    def streams(self) -> dict[str, ManifestStream]:
        """The streams of the job, by name."""
        return {
            TRAINING_STREAM: ManifestStream(self.training_manifest),
            EVALUATION_STREAM: ManifestStream(self.evaluation_manifest),
        }

    @property
    def training_job(self) -> TrainingJob:
        """The job file, validated.

        Raises:
            SpecError: `job` is no valid TrainingJob.
        """
        try:
            return TrainingJob.model_validate(self.job)
        except ValidationError as error:
            problems = [
                FieldProblem("job." + ".".join(map(str, p["loc"])), repr(p["input"])[:200], p["msg"])
                for p in error.errors()
            ]
            raise SpecError(problems, environment.LAUNCH_FILE) from None


def encode_launch(request: LaunchRequest) -> str:
    """The text of `launch.json`."""
    return msgspec.json.format(msgspec.json.encode(request), indent=2).decode()


def decode_launch(text: str | bytes) -> LaunchRequest:
    """A checked request.

    Raises:
        SpecError: invalid JSON, an unknown or missing field, or an invalid value.
    """
    try:
        request = msgspec.json.decode(text, type=LaunchRequest)
    except msgspec.MsgspecError as error:
        problem = FieldProblem("launch", str(error), "a LaunchRequest as JSON", "write it with encode_launch")
        raise SpecError([problem], environment.LAUNCH_FILE) from None
    problems = []
    allowed_id = "1 to 50 characters of a-z, 0-9 and -, first and last no -"
    plain = request.job_id.replace("-", "")
    if (
        not 0 < len(request.job_id) <= 50
        or request.job_id.strip("-") != request.job_id
        or not plain.isascii()
        or not plain.isalnum()
        or plain != plain.lower()
    ):
        problems.append(FieldProblem("job_id", repr(request.job_id), allowed_id))
    if request.training_rows < 1:
        problems.append(
            FieldProblem("training_rows", str(request.training_rows), "at least 1", "check the training partitions")
        )
    if request.evaluation_rows < 0:
        problems.append(FieldProblem("evaluation_rows", str(request.evaluation_rows), "0 or more"))
    if request.evaluation_rows and not request.evaluation_manifest:
        problems.append(FieldProblem("evaluation_manifest", "''", "a URI when evaluation_rows is above 0"))
    for field in ("training_manifest", "store"):
        if not getattr(request, field):
            problems.append(FieldProblem(field, "''", "a URI"))
    if request.start_positions and (not request.start_record or request.older_start_records):
        allowed = "empty, or with a start_record that nothing stands in for"
        problems.append(FieldProblem("start_positions", repr(request.start_positions)[:200], allowed))
    if request.run_id and not request.tracking_uri:
        problems.append(FieldProblem("tracking_uri", "''", "a URI when run_id is given"))
    if problems:
        raise SpecError(problems, environment.LAUNCH_FILE)
    _ = request.training_job
    return request


def pod_name(job_id: str, role: Role, index: int = 0, restart: int = 0) -> str:
    """`{job_id}-worker-0`, `{job_id}-ps-0`, `{job_id}-master`; replacements end in `-r1`, `-r2`, …"""
    if role in (Role.MASTER, Role.EVALUATOR):
        name = f"{job_id}-{_SHORT_ROLE[role]}"
    else:
        name = f"{job_id}-{_SHORT_ROLE[role]}-{index}"
    return f"{name}-r{restart}" if restart else name


def evaluator_job(job_id: str) -> str:
    """The id of the evaluator's own job, because it may be started when the pods of the evaluated job have been
    deleted."""
    return pod_name(job_id, Role.EVALUATOR)


def secret_files(token: str, tls: TlsConfig | None, *, serves: bool) -> dict[str, str]:
    """The files by which a pod of the job authenticates and, if it serves, is authenticated."""
    files = {environment.TOKEN_FILE: token}
    if tls:
        files[environment.CA_FILE] = tls.root_pem.decode()
        if serves:
            files[environment.CERTIFICATE_FILE] = tls.certificate_pem.decode()
            files[environment.KEY_FILE] = tls.key_pem.decode()
    return files


def by_secrecy(files: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Plain files of a pod, and those that are to be its secrets, because a URI in them has a password."""
    hidden = {name: text for name, text in files.items() if masked(text) != text}
    return {name: text for name, text in files.items() if name not in hidden}, hidden


def pod_size(resources: PodResources) -> PodSize:
    """The size of one pod of a role."""
    return PodSize(resources.cores, resources.memory)


def master_pod(
    request: LaunchRequest, cluster_config: ClusterConfig, token: str, tls: TlsConfig | None = None
) -> PodSpec:
    """The job's master: restarted in place by its node, so that its journal and its address survive."""
    secrets = {
        **secret_files(token, tls, serves=True),
        environment.CLUSTER_FILE: encode_config(cluster_config.for_master()),
    }
    return _pod(
        request,
        Role.MASTER,
        pod_name(request.job_id, Role.MASTER),
        pod_size(request.training_job.spec.resources.master),
        files={environment.LAUNCH_FILE: encode_launch(request)},
        secrets=secrets,
        environment_variables={},
        restart_policy=RestartPolicy.ON_FAILURE,
    )


def member_pod(
    request: LaunchRequest,
    role: Role,
    master_address: str,
    index: int,
    token: str,
    tls: TlsConfig | None = None,
    *,
    restart: int = 0,
    size: PodSize | None = None,
    avoids_nodes: tuple[str, ...] = (),
) -> PodSpec:
    """Worker or parameter server `index`; `size` if it differs from the job file's.

    Args:
        avoids_nodes: names of nodes on which it must not run.
    """
    resources = request.training_job.spec.resources
    described = resources.worker if role is Role.WORKER else resources.parameter_server
    return _pod(
        request,
        role,
        pod_name(request.job_id, role, index, restart),
        size or pod_size(described),
        files={environment.STORE_FILE: request.store},
        secrets=secret_files(token, tls, serves=role is not Role.WORKER),
        environment_variables={
            environment.MASTER_ADDRESS: master_address,
            environment.JOB_NAME: request.training_job.metadata.name,
            environment.MASTER_TIMEOUT: f"{request.training_job.spec.faults.master_timeout:g}",
            environment.GRACE: f"{_GRACE_SECONDS[role]:g}",
        },
        restart_policy=RestartPolicy.NEVER,
        memory_volume=_memory_volume(request, role, index),
        placement=Placement(avoid_node_names=avoids_nodes, is_required=True) if avoids_nodes else None,
    )


def _memory_volume(request: LaunchRequest, role: Role, index: int) -> MemoryVolume | None:
    """The memory volume of a server's place, from which its next pod restores."""
    size_bytes = request.training_job.spec.checkpoint.memory
    if size_bytes is None or role is not Role.PARAMETER_SERVER:
        return None
    return MemoryVolume(f"{_SHORT_ROLE[role]}-{index}", size_bytes)


def _pod(
    request: LaunchRequest,
    role: Role,
    name: str,
    size: PodSize,
    *,
    files: dict[str, str],
    secrets: dict[str, str],
    environment_variables: dict[str, str],
    restart_policy: RestartPolicy,
    memory_volume: MemoryVolume | None = None,
    placement: Placement | None = None,
) -> PodSpec:
    plain, hidden = by_secrecy(files)
    return PodSpec(
        name=name,
        job=request.job_id,
        role=role,
        command=("python", "-m", _MODULE[role]),
        size=size,
        environment={environment.JOB: request.job_id, environment.POD: name, **environment_variables},
        files=plain,
        secrets=secrets | hidden,
        serves=role is not Role.WORKER,
        startup_cores=request.training_job.spec.resources.startup_cores,
        restart_policy=restart_policy,
        memory_volume=memory_volume,
        placement=placement,
        grace_seconds=_GRACE_SECONDS[role],
        labels={"elastrec.io/role": _SHORT_ROLE[role], TEAM_LABEL: request.training_job.metadata.team},
    )
