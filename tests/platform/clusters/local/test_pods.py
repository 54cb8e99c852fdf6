"""The life of a pod, as seen by a user of the local cluster."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path

import pytest

from elastrec.platform.clusters.local import messages
from elastrec.platform.clusters.local.launcher import LocalLauncher
from elastrec.platform.clusters.pods import EndReason, PodPhase, PodSize, PodStatus, RestartPolicy
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.metrics import Role

pytestmark = pytest.mark.services

MIB = 1 << 20


def test_a_pod_that_returns_zero_is_completed(cluster, make_pod, until):
    pod = make_pod("print('done')")
    assert cluster.create(pod).uid == until(cluster, pod.name).uid
    status = cluster.get(pod.name)
    assert (status.phase, status.reason, status.exit_code) == (PodPhase.SUCCEEDED, "Completed", 0)
    assert status.finished_unix_seconds >= status.started_unix_seconds >= status.created_unix_seconds
    assert status.node == "node-a"


@pytest.mark.parametrize(
    ("program", "exit_code"),
    [("raise SystemExit(3)", 3), ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137)],
)
def test_a_failed_pod_reports_its_error(cluster, make_pod, until, program, exit_code):
    pod = make_pod(program)
    cluster.create(pod)
    status = until(cluster, pod.name)
    assert (status.phase, status.reason, status.exit_code) == (PodPhase.FAILED, "Error", exit_code)


def test_a_command_that_does_not_exist_fails_with_the_reason(cluster, make_pod, until):
    pod = make_pod(command=("no-such-program",))
    cluster.create(pod)
    status = until(cluster, pod.name)
    assert (status.phase, status.exit_code) == (PodPhase.FAILED, 127)
    assert "cannot start 'no-such-program'" in status.message


def test_creating_a_pod_again_returns_the_existing_one(cluster, make_pod):
    first = cluster.create(make_pod(name="one", secrets={"token": "a"}))
    # A master that was restarted at another address asks for another pod of that name.
    assert cluster.create(make_pod(name="one", secrets={"token": "b"}, cores=0.25)) == first
    assert len(cluster.list()) == 1


@pytest.mark.parametrize("other", [{"job": "other"}, {"role": Role.PARAMETER_SERVER}])
def test_a_name_that_another_job_or_role_has_is_refused(cluster, make_pod, other):
    cluster.create(make_pod(name="one"))
    with pytest.raises(ClusterError, match="name: one is taken by another pod"):
        cluster.create(make_pod(name="one", **other))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "Not_Allowed"}, "name: 'Not_Allowed' is not allowed"),
        ({"name": "x" * 64}, "at most 63 characters"),
        ({"command": ()}, "command is empty"),
        ({"files": {"../token": ""}}, "file name '../token' is not allowed"),
        ({"secrets": {"../token": ""}}, "file name '../token' is not allowed"),
        ({"files": {"a\0b": ""}}, r"file name 'a\\x00b' is not allowed"),
        ({"files": {"x" * 255: ""}}, "file name 'x+' is not allowed"),
        ({"environment": {"A=B": "1"}}, "the variable 'A=B' is not allowed"),
        ({"environment": {"A": "1\0"}}, "the variable 'A' is not allowed; allowed: a name without '=', and no NUL"),
        ({"command": ("python", "\0")}, r"command \('python', '\\x00'\) is not allowed"),
        ({"files": {"token": ""}, "secrets": {"token": ""}}, "'token' stands in files and in secrets"),
        ({"cores": 0.0}, "size.cores: 0.0 is not allowed"),
        ({"cores": 4.5}, "insufficient cpu: asked 4.5, the cluster has 4.0"),
        ({"memory": 4096 * MIB}, "larger than the whole cluster"),
        ({"grace_seconds": -1.0}, "grace_seconds -1.0 is not allowed"),
        ({"grace_seconds": 1e12}, "grace_seconds 1000000000000.0 is not allowed; allowed: 0 to 604800"),
    ],
)
def test_a_pod_that_cannot_be_is_refused_with_the_reason(cluster, make_pod, fields, said):
    with pytest.raises(ClusterError, match=said):
        cluster.create(make_pod(**fields))
    assert cluster.list() == []


def test_a_pod_learns_who_it_is_from_its_environment(cluster, make_pod, until):
    program = (
        "import json, os, pathlib, stat; e = os.environ; f = pathlib.Path(e['ELASTREC_FILES'])\n"
        "print(json.dumps({'environment': dict(e), 'files': {p.name: [p.read_text(), p.stat().st_mode & 0o777]"
        " for p in f.iterdir()}, 'folder': f.stat().st_mode & 0o777, 'cwd': os.getcwd()}))"
    )
    texts = {"files": {"plan": "text"}, "secrets": {"token": "s3cret"}}
    pod = make_pod(program, **texts, environment={"MINE": "1"}, serves=True, cores=2.0)
    cluster.create(pod)
    status = until(cluster, pod.name)
    seen = json.loads(next(cluster.logs(pod.name)))
    environment = seen["environment"]
    assert seen["files"] == {"plan": ["text", 0o600], "token": ["s3cret", 0o600]}
    assert seen["folder"] == 0o700
    assert seen["cwd"] == environment["ELASTREC_WORK"]
    expected = {
        "ELASTREC_JOB": "job",
        "ELASTREC_POD": pod.name,
        "ELASTREC_NODE": "node-a",
        "ELASTREC_HOST": "127.0.0.1",
        "ELASTREC_CORES": "2",
        "ELASTREC_PORT": status.address.rpartition(":")[2],
        "OMP_NUM_THREADS": "2",
        "NUMBA_NUM_THREADS": "2",
        "OMP_WAIT_POLICY": "PASSIVE",
        "MALLOC_MMAP_THRESHOLD_": "4294967296",
        "MALLOC_TRIM_THRESHOLD_": "100000000000",
        "PYTHONUNBUFFERED": "1",
        "MINE": "1",
    }
    assert environment.items() >= expected.items()
    assert "PYTEST_CURRENT_TEST" not in environment


@pytest.mark.parametrize("seconds", [math.inf, math.nan, 1e12, -1.0])
def test_a_deletion_with_an_impossible_grace_is_refused_before_anything_is_journalled(cluster, make_pod, seconds):
    # A timer of that length ended the thread that supervises the pods, and infinity damaged the journal.
    pod = make_pod()
    created = cluster.create(pod)
    with pytest.raises(ClusterError, match=f"pod {pod.name}: grace_seconds {seconds} is not allowed; allowed: 0 to"):
        cluster.fleet(pod.job).delete(pod.name, created.uid, grace_seconds=seconds)
    assert not cluster.get(pod.name).is_ending


def test_deleting_lets_the_pod_finish_within_its_grace(cluster, make_pod, first_line, tmp_path):
    file = tmp_path / "saved"
    pod = make_pod(
        "import signal, sys, pathlib\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({str(file)!r}).touch(), sys.exit(0)))\n"
        "print('ready')\nsignal.pause()"
    )
    cluster.create(pod)
    assert first_line(cluster, pod.name) == "ready"
    cluster.delete(pod.name)
    assert file.exists()
    assert cluster.get(pod.name) is None


def test_a_pod_that_ignores_the_signal_is_killed_after_its_grace(cluster, make_pod, first_line, is_alive):
    pod = make_pod(
        "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid())\n"
        "while True: signal.pause()",
        grace_seconds=0.3,
    )
    cluster.create(pod)
    pid = int(first_line(cluster, pod.name))
    cluster.delete(pod.name)
    assert not is_alive(pid)


def test_deleting_an_unknown_pod_is_not_an_error(cluster):
    cluster.delete("nobody")


def test_concurrent_deletions_of_a_pod_all_succeed(cluster, make_pod, first_line):
    pod = make_pod("print('up')\nimport signal; signal.pause()", restart_policy=RestartPolicy.ON_FAILURE)
    cluster.create(pod)
    first_line(cluster, pod.name)
    problems: list[Exception] = []

    def delete(grace: float) -> None:
        try:
            cluster.delete(pod.name, grace_seconds=grace)
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=delete, args=(grace,)) for grace in (5.0, 1.0, 0.0, 5.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert cluster.list() == []


def test_a_pod_deleted_directly_after_its_creation_leaves_nothing(cluster, make_pod, until_true, tmp_path):
    for number in range(10):
        pod = make_pod(
            f"import pathlib; pathlib.Path({str(tmp_path)!r}, '{number}').touch()\nimport signal; signal.pause()"
        )
        cluster.create(pod)
        cluster.delete(pod.name, grace_seconds=0.0)
    assert cluster.list() == []
    assert cluster.nodes()[0].free == cluster.nodes()[0].size


def test_grandchildren_that_left_the_group_die_with_the_pod(cluster, make_pod, first_line, is_alive):
    leaf = "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid()); signal.pause()"
    middle = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {leaf!r}], start_new_session=True)"
    program = f"import signal, subprocess, sys; subprocess.run([sys.executable, '-c', {middle!r}]); signal.pause()"
    pod = make_pod(program)
    cluster.create(pod)
    orphan = int(first_line(cluster, pod.name))
    assert is_alive(orphan)
    cluster.delete(pod.name)
    assert not is_alive(orphan)


def test_remaining_processes_of_an_ended_pod_are_killed(cluster, make_pod, until, is_alive):
    program = (
        "import subprocess, sys\nchild = subprocess.Popen(['sleep', '1000'], start_new_session=True); print(child.pid)"
    )
    pod = make_pod(program)
    cluster.create(pod)
    until(cluster, pod.name)
    assert not is_alive(int(next(cluster.logs(pod.name))))


def test_a_failed_pod_is_restarted_in_place_with_its_port_and_work_folder(cluster, make_pod, until):
    program = """
import os, pathlib, socket
file, port = pathlib.Path("count"), int(os.environ["ELASTREC_PORT"])
attempt = int(file.read_text()) + 1 if file.exists() else 1
file.write_text(str(attempt))
server = socket.create_server((os.environ["ELASTREC_HOST"], port))
print(attempt, port)
raise SystemExit(0 if attempt == 3 else 1)
"""
    pod = make_pod(program, serves=True, restart_policy=RestartPolicy.ON_FAILURE)
    created = cluster.create(pod)
    status = until(cluster, pod.name)
    port = created.address.rpartition(":")[2]
    assert (status.phase, status.restarts, status.address) == (PodPhase.SUCCEEDED, 2, created.address)
    assert list(cluster.logs(pod.name)) == [f"1 {port}", f"2 {port}", f"3 {port}"]


def test_a_pod_waiting_for_its_next_attempt_can_be_deleted(cluster, make_pod, until):
    pod = make_pod("raise SystemExit(1)", restart_policy=RestartPolicy.ON_FAILURE)
    cluster.create(pod)
    status = until(cluster, pod.name, lambda status: status.restarts >= 2 and status.reason == "Error")
    assert status.phase is PodPhase.RUNNING
    assert "next attempt in" in status.message
    cluster.delete(pod.name)
    assert cluster.list() == []


def test_a_pod_that_does_not_fit_waits_and_starts_when_there_is_room(cluster, make_pod, until, running):
    first, second, third = (make_pod(cores=cores, memory=512 * MIB) for cores in (3.0, 2.5, 2.0))
    cluster.create(first)
    waiting = cluster.create(second)
    assert (waiting.phase, waiting.reason) == (PodPhase.PENDING, "Unschedulable")
    assert waiting.message == "insufficient cpu: asked 2.5, free 1.0"
    assert cluster.create(third).phase is PodPhase.PENDING
    assert cluster.nodes()[0].free == PodSize(1.0, 1536 * MIB)
    cluster.delete(first.name)
    until(cluster, second.name, running)
    assert cluster.get(third.name).message == "insufficient cpu: asked 2.0, free 1.5"
    cluster.delete(second.name)
    until(cluster, third.name, running)


def test_a_waiting_pod_that_is_deleted_never_starts(cluster, make_pod):
    big, small = make_pod(cores=4.0), make_pod(cores=1.0)
    cluster.create(big)
    cluster.create(small)
    cluster.delete(small.name)
    cluster.delete(big.name)
    assert cluster.list() == []


def test_a_watch_reports_all_changes_and_resumes_without_a_gap(cluster, make_pod, until):
    fleet = cluster.fleet("job")
    (*_, synced) = fleet.watch("", 0.0)
    pod, other = make_pod("print(1)"), make_pod("print(2)", job="other")
    cluster.create(pod)
    cluster.create(other)
    until(cluster, pod.name)
    until(cluster, other.name)
    cluster.delete(pod.name)
    whole = list(fleet.watch(synced.resume, 0.0))
    assert {event.pod.name for event in whole} == {pod.name}
    assert [event.kind for event in whole] == ["ADDED", *["MODIFIED"] * (len(whole) - 2), "DELETED"]
    assert [event.pod.phase for event in whole if event.kind == "MODIFIED"][-2:] == [PodPhase.SUCCEEDED] * 2
    assert len({event.resume for event in whole}) == len(whole)
    assert list(fleet.watch(whole[2].resume, 0.0)) == whole[3:]


@pytest.mark.parametrize("token", ["", "another-journal:1", "nonsense"])
def test_a_watch_without_a_known_token_begins_with_a_snapshot(cluster, make_pod, token):
    pods = [make_pod(), make_pod(), make_pod(job="other")]
    for pod in pods:
        cluster.create(pod)
    events = list(cluster.fleet("job").watch(token, 0.0))
    assert [event.kind for event in events] == ["SEEN", "SEEN", "SYNCED"]
    assert {event.pod.name for event in events[:2]} == {pod.name for pod in pods[:2]}
    assert [event.resume for event in events[:2]] == ["", ""], "half a snapshot cannot be resumed"
    # Nothing more has happened since.
    assert list(cluster.fleet("job").watch(events[-1].resume, 0.0)) == []


def test_a_watch_returns_immediately_after_a_change(cluster, make_pod):
    pod = make_pod()
    (*_, synced) = cluster.fleet("job").watch("", 0.0)
    timer = threading.Timer(0.2, cluster.create, [pod])
    timer.start()
    event = next(event for event in cluster.fleet("job").watch(synced.resume, 20.0) if event.pod.name == pod.name)
    assert event.kind == "ADDED"
    timer.join()


def test_a_fleet_orders_a_deletion_and_the_watch_tells_its_end(cluster, make_pod, first_line):
    pod = make_pod("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up')\nsignal.pause()")
    uid, fleet = cluster.create(pod).uid, cluster.fleet("job")
    assert first_line(cluster, pod.name) == "up"
    fleet.delete(pod.name, "an-earlier-pod", grace_seconds=0.0)
    assert not cluster.get(pod.name).is_ending
    fleet.delete(pod.name, uid, grace_seconds=60.0)  # it would take a minute
    assert cluster.get(pod.name).is_ending
    with pytest.raises(ClusterError, match="is being deleted") as refused:
        cluster.call(messages.CreatePod(pod=pod), PodStatus, 0.5)  # what `create` sends; it would ask for 15 s
    assert refused.value.retryable
    (*_, synced) = fleet.watch("", 0.0)  # before the pod can be gone
    fleet.delete(pod.name, uid, grace_seconds=0.0)
    last = next(event for event in fleet.watch(synced.resume, 20.0) if event.kind == "DELETED")
    assert (last.pod.uid, last.pod.end) == (uid, EndReason.DELETED)


def test_a_dry_run_shows_the_request_without_secrets(cluster, make_pod):
    request = LocalLauncher(cluster).dry_run(make_pod(files={"launch.json": "plain"}, secrets={"any.name": "s3cret"}))
    text = json.dumps(request)
    assert request["kind"] == "CreatePod"
    assert request["pod"]["files"] == {"launch.json": "plain"}
    assert request["pod"]["secrets"] == {"any.name": "***"}
    assert "s3cret" not in text
    assert cluster.list() == []


def test_the_secret_files_of_a_pod_are_nowhere_in_the_journal(shared, cluster, make_pod):
    pod = make_pod("import os; print(os.environ['ELASTREC_FILES'])", secrets={"token": "very-s3cret"})
    cluster.create(pod)
    folder = Path(next(iter(cluster.logs(pod.name, follow=True))).partition("/pods/")[0])
    for path in folder.iterdir():
        if path.is_file():
            assert b"very-s3cret" not in path.read_bytes(), path.name


def test_the_secrets_of_a_pod_are_read_back_by_its_uid_as_long_as_it_exists(cluster, make_pod, until):
    pod = make_pod("", files={"plan": "no secret"}, secrets={"token": "s3cret", "ca.pem": "root"})
    uid = cluster.create(pod).uid
    assert cluster.secrets(pod.name, uid) == pod.secrets
    until(cluster, pod.name)
    assert cluster.secrets(pod.name, uid) == pod.secrets
    assert cluster.secrets(pod.name, "an earlier pod of this name") is None
    assert "s3cret" not in str(cluster.list()) + str(list(cluster.fleet("job").watch("", 0.0)))
    cluster.delete(pod.name)
    assert cluster.secrets(pod.name, uid) is None
