"""Jobs of real processes whose workers and servers change during training, or are lost.

While a file exists, the steps of a job are slow, so that awaited events happen during training; then they are fast
until the end. All jobs are compared with one without any change.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from elastrec.checkpoints import list_records, open_record
from elastrec.platform.clusters.nodes import limits_enforced
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.shape import DONE
from elastrec.platform.transport.messages.observer import ShapeOutcome
from tests.faults.campaign.checking import AUC_TOLERANCE
from tests.faults.campaign.injury import AGENT_CORES, kinds_that_work, starve
from tests.faults.campaign.job import BATCH_ROWS, EPOCHS, ROWS
from tests.faults.campaign.plan import Kind
from tests.faults.campaign.site import Site, site_at
from tests.faults.live.jobs import PATIENCE_SECONDS, WORKERS, live_job
from tests.processes import pod_processes, wait_for

pytestmark = pytest.mark.services

GLOBAL_BATCH = WORKERS * BATCH_ROWS
STALL_SECONDS = 45.0
"""Longer than a pod takes to get ready on a busy machine."""
NO_ROOM_SECONDS = 10.0
"""For pods that are not waited for: no node has the room."""
LARGER_BYTES = 640 * 2**20
"""Memory of a server that was made with less."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site_at(tmp_path_factory.mktemp("live") / "home") as here:
        yield here


@pytest.fixture(scope="module")
def undisturbed_auc(site: Site) -> float:
    with live_job(site, "undisturbed", is_slow=False) as job:
        auc = job.train_to_the_end().auc
    assert auc is not None
    return auc


def test_a_bsp_job_whose_workers_go_from_2_to_4_to_1_keeps_its_global_batch_and_its_model(
    site: Site, undisturbed_auc: float
) -> None:
    with live_job(site, "elastic") as job:
        wait_for(job.has_workers(2), PATIENCE_SECONDS, "two workers that train")
        for count in (4, 1):
            before = job.metrics().samples_trained
            job.ask_for(workers=count)
            wait_for(job.has_workers(count), PATIENCE_SECONDS, f"{count} workers that train")
            reached = job.metrics().samples_trained + 4 * GLOBAL_BATCH
            wait_for(lambda: job.metrics().samples_trained > reached, PATIENCE_SECONDS, "four steps")  # noqa: B023
            assert before < reached < EPOCHS * ROWS, "the job ended before its workers changed"
        metrics = job.train_to_the_end()
        assert metrics.generation == 0 and metrics.samples_trained == metrics.samples_total == EPOCHS * ROWS
        accounts, _ = job.accounts()
    assert not accounts.problems and (accounts.lost, accounts.repeated) == (0, 0)
    one, other = job.rows_of_steps.values()
    assert one == other and sum(rows * steps for rows, steps in one.items()) == EPOCHS * ROWS
    # A step is smaller where a split ends within a share; it is never larger.
    steps = sum(one.values())
    assert max(one) == GLOBAL_BATCH and one[GLOBAL_BATCH] > 0.7 * steps and EPOCHS * ROWS / steps > 0.9 * GLOBAL_BATCH
    assert metrics.auc is not None and abs(metrics.auc - undisturbed_auc) < AUC_TOLERANCE


def test_a_server_that_is_lost_after_a_delta_is_restored_from_the_whole_chain(
    site: Site, undisturbed_auc: float
) -> None:
    with live_job(site, "deltas", interval="1s", deltas=3) as job:
        wait_for(job.has_workers(2), PATIENCE_SECONDS, "two workers that train")

        def newest() -> str:
            records = list_records(str(site.store), job.name, job.job_id)
            return records[0][0] if records else ""

        def chain() -> list[str]:
            return [record.uri for record in open_record(newest()).chain()] if newest() else []

        def lose_server_between_deltas() -> bool:
            (master,) = pod_processes(job.job_id, "master", site.home)
            # No newer record may be complete before the server is gone.
            master.suspend()
            try:
                if len(chain()) < 3:
                    return False
                chains.append(chain())
                pod_processes(job.job_id, "ps-0", site.home)[0].kill()
                return True
            finally:
                master.resume()

        chains: list[list[str]] = []
        wait_for(lambda: len(chain()) >= 3 and lose_server_between_deltas(), PATIENCE_SECONDS, "a delta of a delta")
        wait_for(lambda: job.metrics().generation == 1, PATIENCE_SECONDS, "the rollback")
        wait_for(job.has_workers(2), PATIENCE_SECONDS, "two workers that train again")
        metrics = job.train_to_the_end()
        accounts, story = job.accounts()
    restored = chains[-1][-1]
    assert any(entry.what == f"rolled back to {restored}, generation 1" for entry in story.timeline), story.timeline
    assert [open_record(uri).manifest.base for uri in chains[-1]] == ["", *(Path(u).name for u in chains[-1][:-1])]
    assert not accounts.problems and accounts.lost == 0 and metrics.shards_done == metrics.shards_total
    assert metrics.auc is not None and abs(metrics.auc - undisturbed_auc) < AUC_TOLERANCE


@pytest.mark.parametrize("mode", ["async", "bsp"])
def test_every_row_counts_once_while_servers_change_in_number_size_and_place(
    site: Site, undisturbed_auc: float, mode: str
) -> None:
    with live_job(site, f"moved-{mode}", mode=mode, faults={"migration_timeout": STALL_SECONDS}) as job:
        wait_for(job.has_workers(2), PATIENCE_SECONDS, "two workers that train")
        for count in (3, 1, 2):
            job.change(parameter_servers=count)
            assert len(job.pods(Role.PARAMETER_SERVER)) == count
            reached = job.metrics().samples_trained + 4 * GLOBAL_BATCH
            wait_for(lambda: job.metrics().samples_trained > reached, PATIENCE_SECONDS, "four steps")  # noqa: B023
            assert reached < EPOCHS * ROWS, "the job ended before its servers changed"
        servers, workers = job.pods(Role.PARAMETER_SERVER), job.pods(Role.WORKER)
        if mode == "async":
            # Pods that no node has the room for are given up, and the job keeps those that it has.
            given_up = job.give_up(parameter_server_cores=int(AGENT_CORES) - 1)
            assert given_up.outcome is ShapeOutcome.TIMED_OUT and "insufficient cpu: asked 15" in given_up.reason
            assert given_up.reason in job.metrics().given_up and job.metrics().is_stalled
            assert {name: pod.uid for name, pod in job.pods(Role.PARAMETER_SERVER).items()} == {
                name: pod.uid for name, pod in servers.items()
            }
        server, worker = min(servers), min(workers)
        job.change(server, worker, parameter_server_memory_bytes=LARGER_BYTES)
        after = job.pods(Role.PARAMETER_SERVER)
        assert len(after) == 2 and server not in after and len(job.pods(Role.WORKER)) == 2
        assert worker not in job.pods(Role.WORKER)
        assert {pod.size.memory_bytes for pod in after.values()} == {LARGER_BYTES}
        # The server that was not moved has been resized in place.
        (other,) = servers.keys() - {server}
        assert after[other].uid == servers[other].uid and job.metrics().samples_trained < EPOCHS * ROWS
        metrics = job.train_to_the_end()
        assert metrics.generation == 0 and metrics.samples_trained == metrics.samples_total == EPOCHS * ROWS
        accounts, _ = job.accounts()
    assert not accounts.problems and (accounts.lost, accounts.repeated) == (0, 0)
    assert metrics.auc is not None and abs(metrics.auc - undisturbed_auc) < AUC_TOLERANCE


def test_a_bsp_job_whose_new_servers_find_no_room_trains_on_with_those_that_it_has(
    site: Site, undisturbed_auc: float
) -> None:
    with live_job(site, "no-room", faults={"migration_timeout": NO_ROOM_SECONDS}) as job:
        wait_for(job.has_workers(2), PATIENCE_SECONDS, "two workers that train")
        uids = {name: pod.uid for role in Role for name, pod in job.pods(role).items()}
        before = job.metrics().samples_trained
        given_up = job.give_up(parameter_servers=3, parameter_server_cores=int(AGENT_CORES) - 1)
        assert given_up.outcome is ShapeOutcome.TIMED_OUT and "insufficient cpu: asked 15" in given_up.reason
        metrics = job.metrics()
        assert before < metrics.samples_trained < EPOCHS * ROWS and metrics.migration is None
        # Nobody was replaced, and nobody was added.
        assert {name: pod.uid for role in Role for name, pod in job.pods(role).items()} == uids
        metrics = job.train_to_the_end()
        assert metrics.generation == 0 and metrics.samples_trained == metrics.samples_total == EPOCHS * ROWS
        accounts, story = job.accounts()
    assert not accounts.problems and (accounts.lost, accounts.repeated) == (0, 0)
    assert not [migration for migration in story.migrations if migration.outcome == DONE]
    assert metrics.auc is not None and abs(metrics.auc - undisturbed_auc) < AUC_TOLERANCE


def test_a_server_that_the_kernel_kills_for_its_memory_is_succeeded_by_one_with_twice_as_much(
    site: Site, undisturbed_auc: float
) -> None:
    if Kind.OUT_OF_MEMORY not in kinds_that_work(limits_enforced(site.platform.launcher.nodes())):
        pytest.skip("an agent's memory limits have their own tests")
    with live_job(site, "doubled", interval="1s") as job:
        wait_for(job.has_workers(2), PATIENCE_SECONDS, "two workers that train")
        wait_for(lambda: job.metrics().checkpoint, PATIENCE_SECONDS, "a record")
        servers = job.pods(Role.PARAMETER_SERVER)
        killed, kept = sorted(servers)
        (process,) = pod_processes(job.job_id, "ps-0", site.home)
        starve(process)
        wait_for(lambda: killed not in job.pods(Role.PARAMETER_SERVER), PATIENCE_SECONDS, "the kill")
        wait_for(lambda: job.metrics().generation == 1, PATIENCE_SECONDS, "the rollback")
        # The successor is made, and the other one resized, after the rollback has been decided.
        doubled = [2 * servers[kept].size.memory_bytes] * 2
        wait_for(lambda: job.sizes_of_servers() == doubled, PATIENCE_SECONDS, "two servers with twice as much memory")
        assert job.pods(Role.PARAMETER_SERVER)[kept].uid == servers[kept].uid
        metrics = job.train_to_the_end()
        accounts, story = job.accounts()
    words = [entry.what for entry in story.timeline if entry.what.startswith("the successor of")]
    assert words == [f"the successor of {killed} gets 1Gi of memory"]
    assert not accounts.problems and accounts.lost == 0 and metrics.shards_done == metrics.shards_total
    assert metrics.auc is not None and abs(metrics.auc - undisturbed_auc) < AUC_TOLERANCE


def test_a_server_that_is_sent_sigterm_hands_its_buckets_over_and_no_row_is_trained_twice(
    site: Site, undisturbed_auc: float
) -> None:
    with live_job(site, "noticed", interval="1h") as job:
        wait_for(job.has_workers(2), PATIENCE_SECONDS, "two workers that train")
        server = min(job.pods(Role.PARAMETER_SERVER))
        (process,) = pod_processes(job.job_id, "ps-0", site.home)
        assert process.environ()["ELASTREC_POD"] == server
        process.terminate()
        wait_for(
            lambda: server not in job.pods(Role.PARAMETER_SERVER) and job.metrics().migration is None,
            PATIENCE_SECONDS,
            "another server in its place",
        )
        assert len(job.pods(Role.PARAMETER_SERVER)) == 2
        # No other save was due: this one is of the notice.
        assert list_records(str(site.store), job.name, job.job_id)
        reached = job.metrics().samples_trained + 4 * GLOBAL_BATCH
        wait_for(lambda: job.metrics().samples_trained > reached, PATIENCE_SECONDS, "four steps")
        assert reached < EPOCHS * ROWS, "the job ended before its server had left"
        metrics = job.train_to_the_end()
        assert metrics.generation == 0 and metrics.samples_trained == metrics.samples_total == EPOCHS * ROWS
        accounts, story = job.accounts()
    assert not accounts.problems and (accounts.lost, accounts.repeated) == (0, 0)
    assert any("will be ended" in entry.what for entry in story.timeline)
    assert metrics.auc is not None and abs(metrics.auc - undisturbed_auc) < AUC_TOLERANCE
