"""Real server processes under a scripted master."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from elastrec.checkpoints import PartManifest, commit_record, new_record_uri, open_store
from elastrec.platform.specs import environment
from elastrec.platform.specs.errors import TransportError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.transport import RpcClient
from elastrec.platform.transport.messages.directive import Mode, PodOrders, RestoreOrder, SaveOrder, TakeFrom, TakeOrder
from elastrec.platform.transport.messages.job import RestoreProblem
from elastrec.trainers.embedding.client import ParameterClient
from elastrec.trainers.embedding.lane import RoutingChangedError
from elastrec.trainers.parameter_server import pod as server_pod
from elastrec.trainers.parameter_server.messages import GetStats, Parameter, Stats
from elastrec.trainers.parameter_server.model import Model
from elastrec.trainers.parameter_server.plan import plan_of_job
from elastrec.trainers.parameter_server.pod import PodSettings, ServerPod
from elastrec.trainers.parameter_server.records.share import save_part
from elastrec.trainers.parameter_server.serving.handlers import RequestHandlers
from elastrec.trainers.parameter_server.storage import RowStore, ServerMemoryError
from tests.processes import wait_for
from tests.splits import origin_of
from tests.trainers.parameter_server.filled import push, servers_of
from tests.trainers.parameter_server.running import DIMENSION, TOKEN, WORKER, ScriptedMaster, training_job

pytestmark = pytest.mark.services

LAYOUT = [Parameter("over.weight", (3, 5)), Parameter("over.bias", (3,))]


@contextmanager
def server_process(master: ScriptedMaster, index: int, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    files = folder / f"files-{index}"
    files.mkdir(exist_ok=True)
    (files / environment.TOKEN_FILE).write_text(TOKEN)
    (files / environment.STORE_FILE).write_text(str(folder / "store"))
    variables = {
        **os.environ,
        environment.JOB: "job",
        environment.POD: f"ps-{index}",
        environment.MASTER_ADDRESS: master.address,
        environment.JOB_NAME: "job",
        environment.MASTER_TIMEOUT: "600",
        environment.FILES: str(files),
        environment.HOST: "127.0.0.1",
        environment.CORES: "1",
    }
    with (folder / f"ps-{index}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "elastrec.trainers.parameter_server"], env=variables, stderr=log
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(60)


@contextmanager
def pod_in_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ScriptedMaster, threading.Thread]]:
    """A server in a thread of this process, which does not wait for its kernels, and its master."""
    monkeypatch.setattr(server_pod, "warm_kernels", lambda: None)
    master = ScriptedMaster(training_job(), servers=1)
    pod = ServerPod(PodSettings("ps-0", "node", master.address, "127.0.0.1", 0, TOKEN))
    running = threading.Thread(target=pod.run, daemon=True)
    running.start()
    try:
        yield master, running
    finally:
        pod.stop()
        running.join(60)
        master.close()


def connected_client(master: ScriptedMaster) -> ParameterClient:
    client = ParameterClient(
        plan_of_job(training_job().spec), worker=WORKER.pod, incarnation=WORKER.incarnation, token=TOKEN, layout=LAYOUT
    )
    client.connect(master.directive.routing, master.directive.generation)
    return client


def push_steps(client: ParameterClient, steps: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    for step in range(steps):
        pulled = pull(client, random.integers(0, 1000, 60), dense=True)
        rows = pulled.rows()[0]
        # By id, not by place: the order of the rows depends on the number of servers.
        gradient = random.normal(size=(1000, rows.shape[1])).astype(np.float32)[pulled.routed.ids]
        client.push(pulled, [gradient], [random.normal(size=18).astype(np.float32)], 30, origin_of(step, number=seed))
    client.flush()


def pull(client: ParameterClient, ids: np.ndarray, *, dense: bool = False, read_only: bool = False):  # type: ignore
    half = len(ids) // 2
    routed = client.router.route(ids, np.array([0, half]), np.array([half, len(ids)]), np.array([0, 1], np.int64))
    return client.pull(routed, dense=dense, read_only=read_only)


def everything(client: ParameterClient) -> tuple[np.ndarray, np.ndarray]:
    ids = np.tile(np.arange(1000), 2)
    pulled = pull(client, ids, dense=True, read_only=True)
    return pulled.rows()[0][pulled.routed.inverse], pulled.dense()


def test_three_servers_continue_from_a_record_after_the_loss_of_one_of_two(tmp_path: Path) -> None:
    job = training_job()
    master = ScriptedMaster(job, servers=2)
    pods = ["ps-0", "ps-1"]
    try:
        open_store(tmp_path / "store").create()
        with server_process(master, 0, tmp_path) as first, server_process(master, 1, tmp_path) as second:
            addresses = master.wait_for_registrations(2)
            directive = master.direct(generation=1, addresses=addresses, restore=RestoreOrder("r1", ""))
            master.wait_until_reached(directive, pods)
            client = connected_client(master)
            client.init_dense(np.linspace(-1, 1, 18).astype(np.float32))
            push_steps(client, steps=5, seed=1)
            before = everything(client)

            uri = new_record_uri(str(tmp_path / "store"), "clicks", "job-1", step=150)
            directive = master.direct(mode=Mode.PAUSE, save=SaveOrder("s1", uri))
            master.wait(lambda: all(master.heartbeats[pod].saved for pod in pods), "both parts are saved")
            saved = [master.heartbeats[pod].saved for pod in pods]
            parts = [PartManifest.from_json(part.manifest_json) for part in saved if part]
            commit_record(uri, parts, b"{}", job=job, job_id="job-1", kind="periodic", step=150, generation=1)
            rows = sum(usage.rows for pod in pods for usage in master.heartbeats[pod].tables)
            loads = [master.heartbeats[pod].load for pod in pods]
            assert all(load.rows_per_second > 0 and len(load.hottest) > 1 for load in loads)
            stats = RpcClient(addresses[0], TOKEN).call(GetStats(), Stats)
            assert 0 < sum(table.rows for table in stats.tables) < rows

            # A master that restarted does not know the pods: they register again, state and all.
            master.registered.clear()
            master.known = False
            master.wait(lambda: master.registered, "a server registers again")
            assert next(iter(master.registered.values())).restored_order_id == "r1"

            master.direct(mode=Mode.TRAIN)
            push_steps(client, steps=3, seed=2)
            after = everything(client)
            assert not np.array_equal(after[0], before[0])
            client.close()
            second.send_signal(signal.SIGKILL)
            first.send_signal(signal.SIGTERM)
            assert first.wait(60) == 0

        master.registered.clear()
        master.heartbeats.clear()
        with (
            server_process(master, 0, tmp_path),
            server_process(master, 1, tmp_path),
            server_process(master, 2, tmp_path) as third,
        ):
            pods = ["ps-0", "ps-1", "ps-2"]
            addresses = master.wait_for_registrations(3)
            directive = master.direct(
                generation=2, addresses=addresses, restore=RestoreOrder("r2", uri, with_marks=True)
            )
            master.wait_until_reached(directive, pods)
            client = connected_client(master)
            client.init_dense(np.zeros(18, np.float32))
            # The worker does not know that the record holds these.
            push_steps(client, steps=5, seed=1)
            restored = everything(client)
            np.testing.assert_array_equal(restored[0], before[0])
            np.testing.assert_array_equal(restored[1], before[1])
            assert before[0].shape == (2000, DIMENSION)
            push_steps(client, steps=3, seed=2)
            again = everything(client)
            np.testing.assert_allclose(again[0], after[0], atol=1e-6)
            np.testing.assert_allclose(again[1], after[1], atol=1e-6)

            # A server that cannot copy says so with its heartbeats, and serves on.
            bucket = master.directive.routing.owners.index(0)
            nobody = TakeFrom("ps-0", "127.0.0.1:1", [bucket], [])
            master.direct(take=TakeOrder("move-1", [nobody]))
            master.wait(lambda: (said := master.heartbeats["ps-2"].copying) and said.problem, "a server's problem")
            said = master.heartbeats["ps-2"].copying
            assert said is not None and "127.0.0.1:1" in said.problem, said
            assert (said.order_id, said.buckets_left, said.advance) == ("move-1", 1, 0) and not said.is_permanent
            directive = master.direct()
            master.wait_until_reached(directive, pods)
            master.wait(lambda: master.heartbeats["ps-2"].copying is None, "a cancelled order")
            np.testing.assert_array_equal(everything(client)[0], again[0])
            client.close()
            master.direct(mode=Mode.EXIT)
            assert third.wait(60) == 0
    finally:
        master.close()


def saved_record(master: ScriptedMaster, job: TrainingJob, store: Path, step: int) -> str:
    """Trains and saves by the one server of `master`."""
    client = connected_client(master)
    client.init_dense(np.linspace(-1, 1, 18).astype(np.float32))
    push_steps(client, steps=2, seed=step)
    client.close()
    uri = new_record_uri(str(store), "clicks", "job-1", step=step)
    master.direct(mode=Mode.PAUSE, save=SaveOrder(f"s{step}", uri))
    master.wait(lambda: (part := master.heartbeats["ps-0"].saved) and part.order_id == f"s{step}", "a part")
    saved = master.heartbeats["ps-0"].saved
    assert saved is not None
    part = PartManifest.from_json(saved.manifest_json)
    commit_record(uri, [part], b"{}", job=job, job_id="job-1", kind="periodic", step=step, generation=1)
    return uri


def problem_of(master: ScriptedMaster, order_id: str) -> RestoreProblem:
    def found() -> RestoreProblem | None:
        beat = master.heartbeats.get("ps-0")
        problem = beat.restore_problem if beat is not None else None
        return problem if problem is not None and problem.order_id == order_id else None

    master.wait(found, f"a problem with {order_id}")
    problem = found()
    assert problem is not None
    return problem


def test_a_server_process_survives_an_unreachable_store_and_a_damaged_record(tmp_path: Path) -> None:
    job = training_job()
    master = ScriptedMaster(job, servers=1)
    root, away = tmp_path / "store", tmp_path / "away"
    open_store(root).create()
    try:
        with server_process(master, 0, tmp_path) as server:
            addresses = master.wait_for_registrations(1)
            directive = master.direct(generation=1, addresses=addresses, restore=RestoreOrder("r1", ""))
            master.wait_until_reached(directive, ["ps-0"])
            older, newer = (saved_record(master, job, root, step) for step in (1, 2))

            root.rename(away)
            root.mkdir()  # as the mount point of a file system that went away
            directive = master.direct(generation=2, restore=RestoreOrder("r2", newer))
            problem = problem_of(master, "r2")
            assert not problem.is_damaged and "no checkpoint store is there" in problem.reason
            assert master.heartbeats["ps-0"].reached_version < directive.version
            assert not list(root.iterdir())
            root.rmdir()
            away.rename(root)
            master.wait_until_reached(directive, ["ps-0"])
            assert master.heartbeats["ps-0"].restored_order_id == "r2"
            assert master.heartbeats["ps-0"].restore_problem is None

            (part,) = Path(newer.removeprefix("file://"), "parts").iterdir()
            data = bytearray(part.read_bytes())
            data[len(data) // 3 : len(data) // 3 + 64] = bytes(64)
            part.write_bytes(data)
            master.direct(generation=3, restore=RestoreOrder("r3", newer))
            problem = problem_of(master, "r3")
            assert problem.is_damaged and "checksum differs" in problem.reason
            directive = master.direct(generation=4, restore=RestoreOrder("r4", older))
            master.wait(lambda: master.heartbeats["ps-0"].restored_order_id == "r4", "the older record is restored")
            assert master.heartbeats["ps-0"].restore_problem is None
            assert not master.failures and server.poll() is None
            master.direct(mode=Mode.EXIT)
            assert server.wait(60) == 0
    finally:
        master.close()


def test_a_server_reports_the_base_in_which_it_found_the_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path / "store")
    store.create()
    job = training_job(checkpoint={"deltas": 2})
    (writer,), uris = servers_of(job, 1), [store.child_uri(f"clicks/records/{step}") for step in (1, 2, 3)]
    for step, (uri, base) in enumerate(zip(uris, ("", *uris), strict=False), start=1):
        push([writer], range(2000 if step == 1 else 10), 1.0)
        part = save_part(writer, uri, cut=f"s{step}", base=f"s{step - 1}" if base else "")
        commit_record(uri, [part], b"{}", job=job, job_id="job-1", kind="periodic", step=step, generation=1, base=base)
    (file,) = Path(uris[0].removeprefix("file://"), "parts").iterdir()
    data = bytearray(file.read_bytes())
    data[len(data) // 3 : len(data) // 3 + 64] = bytes(64)
    file.write_bytes(data)
    with pod_in_thread(monkeypatch) as (master, _):
        addresses = master.wait_for_registrations(1)
        master.direct(generation=1, addresses=addresses, restore=RestoreOrder("r1", uris[-1]))
        problem = problem_of(master, "r1")
        master.direct(mode=Mode.EXIT)
    assert problem.is_damaged and problem.record == uris[0], problem


def test_a_server_restores_for_the_cores_that_it_has_now_and_registers_those_with_which_it_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(environment.CORES, "1")
    threads: list[int] = []
    monkeypatch.setattr(server_pod, "restore", lambda *_, **options: threads.append(options["threads"]))
    with pod_in_thread(monkeypatch) as (master, running):
        addresses = master.wait_for_registrations(1)
        master.wait_until_reached(master.direct(addresses=addresses, restore=RestoreOrder("r1", "")), ["ps-0"])
        master.orders = PodOrders(version=3, cores=2.5)
        master.wait(lambda: master.heartbeats["ps-0"].orders_version == 3, "the server says that it has its orders")
        master.wait_until_reached(master.direct(restore=RestoreOrder("r2", "")), ["ps-0"])
        assert threads == [1, 3] and master.registered["ps-0"].started_cores == 1
        master.known = False
        master.registered.clear()
        master.orders = PodOrders(version=4, cores=4.0)
        master.wait(lambda: master.registered, "the server registers again")
        master.wait_until_reached(master.direct(restore=RestoreOrder("r3", "")), ["ps-0"])
        assert threads == [1, 3, 4] and master.registered["ps-0"].started_cores == 1
        master.direct(mode=Mode.EXIT)
        running.join(60)


def test_an_eviction_that_takes_long_does_not_delay_a_directive(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [0]

    def without_end(*_: object) -> Iterator[int]:
        while True:
            steps[0] += 1
            yield 0

    monkeypatch.setattr(server_pod, "_EVICTION_SECONDS", 0.0)
    monkeypatch.setattr(RowStore, "eviction_steps", without_end)
    with pod_in_thread(monkeypatch) as (master, running):
        addresses = master.wait_for_registrations(1)
        for order in ("r1", "r2"):
            directive = master.direct(generation=1, addresses=addresses, restore=RestoreOrder(order, ""))
            master.wait_until_reached(directive, ["ps-0"])
            wait_for(lambda begun=steps[0]: steps[0] > begun + 10, 60, "an eviction")
        master.direct(mode=Mode.EXIT)
        running.join(60)
        assert not running.is_alive()


def test_heartbeats_go_on_if_a_restore_drops_the_model_while_one_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    dense, reads = SimpleNamespace(values=np.zeros(3, np.float32)), itertools.count()
    # The model is there at one look, and dropped at the next one.
    monkeypatch.setattr(RequestHandlers, "dense", property(lambda self: None if next(reads) % 2 else dense))
    with pod_in_thread(monkeypatch) as (master, _):
        for seen in (12, 0):
            master.wait(
                lambda seen=seen: "ps-0" in master.heartbeats and master.heartbeats["ps-0"].dense_bytes == seen,
                "another heartbeat comes",
            )


def test_a_server_whose_heartbeats_end_with_an_error_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_pod, "warm_kernels", lambda: None)
    master = ScriptedMaster(training_job(), servers=1)

    def memory_bytes() -> int:
        raise ValueError("/proc/self/statm has no numbers")

    settings = PodSettings("ps-0", "node", master.address, "127.0.0.1", 0, TOKEN)
    pod = ServerPod(settings, memory_bytes)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(pod.run)
        try:
            with pytest.raises(ValueError, match="statm"):
                running.result(60)
        finally:
            pod.stop()
            master.close()


def test_a_server_of_512_mib_can_compile_its_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kernels"))
    master = ScriptedMaster(training_job(), servers=1)
    try:
        with server_process(master, 0, tmp_path) as server:
            # It compiles all kernels, which takes half a minute of CPU time, and minutes on a slow, busy machine.
            master.wait_for_registrations(1, seconds=800.0)
            status = Path(f"/proc/{server.pid}/status").read_text()
    finally:
        master.close()
    assert any((tmp_path / "kernels").rglob("*.nbc"))
    # Not ru_maxrss, which a process takes over from the one that has started it.
    peak_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    assert peak_kib < 450 << 10


def test_a_server_that_applied_a_push_in_part_reports_it_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_pod, "warm_kernels", lambda: None)
    apply = Model.apply

    def apply_in_part(*arguments: Any) -> None:
        apply(*arguments)
        raise ServerMemoryError("no memory for more rows")

    master = ScriptedMaster(training_job(), servers=1)
    pod = ServerPod(PodSettings("ps-0", "node", master.address, "127.0.0.1", 0, TOKEN))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(pod.run)
        try:
            addresses = master.wait_for_registrations(1)
            directive = master.direct(generation=1, addresses=addresses, restore=RestoreOrder("r1", ""))
            master.wait_until_reached(directive, ["ps-0"])
            client = connected_client(master)
            client.init_dense(np.zeros(18, np.float32))
            push_steps(client, 1, seed=1)
            assert not running.done() and not master.failures
            monkeypatch.setattr(Model, "apply", apply_in_part)
            with pytest.raises((TransportError, RoutingChangedError)):
                push_steps(client, 1, seed=2)
            with pytest.raises(ServerMemoryError, match="no memory for more rows"):
                running.result(60)
        finally:
            pod.stop()
            master.close()
    (failure,) = master.failures
    assert (failure.pod, failure.incarnation, failure.retryable) == ("ps-0", pod.incarnation, True)
    assert "applied in part: no memory for more rows" in failure.reason


def test_a_server_without_its_environment_names_the_missing_variable() -> None:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("ELASTREC_")}
    done = subprocess.run(
        [sys.executable, "-m", "elastrec.trainers.parameter_server"],
        env=variables,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert b"ELASTREC_MASTER_ADDRESS" in done.stderr


def test_a_server_never_loads_torch() -> None:
    code = "import sys, elastrec.trainers.parameter_server.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
