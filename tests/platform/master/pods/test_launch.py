from __future__ import annotations

import msgspec
import pytest

from elastrec.platform.clusters.local.config import LocalConfig
from elastrec.platform.clusters.pods import PodSize, RestartPolicy
from elastrec.platform.master.pods.launch import (
    LaunchRequest,
    decode_launch,
    encode_launch,
    master_pod,
    member_pod,
    pod_name,
)
from elastrec.platform.specs.errors import SpecError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Role
from elastrec.platform.transport.security import TlsConfig

JOB = TrainingJob.model_validate(
    {
        "apiVersion": "elastrec.io/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "clicks"},
        "spec": {
            "model": {"architecture": "dlrm"},
            "data": {"path": "data/clicks", "sparse": [{"name": "user"}]},
            "resources": {"worker": {"count": 2, "cores": 0.5, "memory": "1Gi"}},
        },
    }
)


CLUSTER = LocalConfig(address="127.0.0.1:1", token="token of the cluster")


def request(**changes: object) -> LaunchRequest:
    fields: dict[str, object] = {
        "job_id": "clicks-2026-01-31",
        "training_manifest": "file:///m/train.json",
        "training_rows": 1000,
        "evaluation_manifest": "file:///m/eval.json",
        "evaluation_rows": 100,
        "store": "file:///store",
    }
    return LaunchRequest.of(JOB, **(fields | changes))


def test_a_launch_request_survives_its_text_form():
    assert decode_launch(encode_launch(request())) == request()
    assert decode_launch(encode_launch(request())).training_job == JOB


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"training_rows": 0}, "training_rows"),
        ({"job_id": "Bad_Name"}, "job_id"),
        ({"store": ""}, "store"),
        ({"evaluation_manifest": ""}, "evaluation_manifest"),
        ({"run_id": "r"}, "tracking_uri"),
    ],
)
def test_a_wrong_launch_field_is_named(change: dict[str, object], named: str):
    with pytest.raises(SpecError, match=named):
        decode_launch(encode_launch(request(**change)))


def test_an_invalid_job_inside_a_launch_file_is_named_by_its_path():
    broken = msgspec.structs.replace(request(), job={**request().job, "kind": "Other"})
    with pytest.raises(SpecError, match=r"job\.kind"):
        decode_launch(encode_launch(broken))


def test_the_master_restarts_in_place_and_carries_its_files():
    pod = master_pod(request(), CLUSTER, "secret")
    assert pod.name == "clicks-2026-01-31-master"
    assert pod.restart_policy is RestartPolicy.ON_FAILURE and pod.serves
    assert set(pod.files) == {"launch.json"} and set(pod.secrets) == {"token", "cluster.json"}
    # Of the cluster's own token it has nothing.
    assert CLUSTER.token not in str(pod.secrets) + str(pod.files)
    assert "secret" not in str(pod.environment) + str(pod.command) + str(pod.files) + str(pod.labels)


def test_members_know_their_master_and_have_the_asked_size():
    worker = member_pod(request(), Role.WORKER, "host:1", 1, "secret")
    assert worker.size == PodSize(0.5, 2**30)
    assert worker.environment["ELASTREC_MASTER_ADDRESS"] == "host:1"
    server = member_pod(
        request(), Role.PARAMETER_SERVER, "host:1", 0, "secret", TlsConfig(b"root", b"cert", b"key"), restart=2
    )
    assert server.name == "clicks-2026-01-31-ps-0-r2" and server.serves
    assert server.secrets == {"token": "secret", "ca.pem": "root", "tls.crt": "cert", "tls.key": "key"}


def test_a_worker_has_no_key_that_others_take_for_a_servers():
    worker = member_pod(request(), Role.WORKER, "host:1", 1, "secret", TlsConfig(b"root", b"cert", b"key"))
    assert worker.secrets == {"token": "secret", "ca.pem": "root"}


def test_texts_with_a_password_are_secrets_of_a_pod_and_no_variables():
    plain = request()
    hidden = msgspec.structs.replace(plain, store="webhdfs://user:s3cret@host/store", tracking_uri="http://u:s3cret@m")
    members = [Role.WORKER, Role.PARAMETER_SERVER]
    for asked, where in ((plain, "files"), (hidden, "secrets")):
        pods = [master_pod(asked, CLUSTER, "t"), *(member_pod(asked, role, "host:1", 0, "t") for role in members)]
        for pod, name in zip(pods, ("launch.json", "store", "store"), strict=True):
            assert name in getattr(pod, where)
            assert "s3cret" not in str(msgspec.structs.replace(pod, secrets={}))
        assert [getattr(pod, where)["store"] for pod in pods[1:]] == [asked.store] * 2


def test_pods_that_report_when_they_are_ready_get_the_cores_at_start():
    pods = [master_pod(request(), CLUSTER, "s"), member_pod(request(), Role.WORKER, "h:1", 0, "s")]
    assert [pod.startup_cores for pod in pods] == [1.0, 1.0]
    resources = JOB.spec.resources.model_copy(update={"startup_cores": 0.0})
    without = JOB.model_copy(update={"spec": JOB.spec.model_copy(update={"resources": resources})})
    launch = msgspec.structs.replace(request(), job=without.model_dump(mode="json", by_alias=True))
    assert member_pod(launch, Role.PARAMETER_SERVER, "h:1", 0, "s").startup_cores == 0.0


def test_pod_names_fit_a_kubernetes_name():
    assert len(pod_name("j" * 50, Role.WORKER, 999)) <= 63
