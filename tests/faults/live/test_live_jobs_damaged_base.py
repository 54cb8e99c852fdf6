"""The base of a chain of deltas is damaged when a server of the job is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastrec.checkpoints import list_records
from elastrec.platform.specs.splits import StreamPositions
from tests.faults.campaign.accounts import positions_of
from tests.faults.campaign.site import site_at
from tests.faults.live.jobs import PATIENCE_SECONDS, LiveJob, live_job
from tests.processes import pod_processes, wait_for

pytestmark = pytest.mark.services

DELTAS, CHAIN = 2, 3


def chains(job: LiveJob) -> list[list[str]]:
    """URIs of the records of each chain, its full record first; the newest chain last."""
    found: list[list[str]] = []
    for uri, manifest in reversed(list_records(str(job.site.store), job.name, job.job_id)):
        found.append([uri]) if not manifest.base else found[-1].append(uri)
    return found


def damage(record: str) -> None:
    for part in Path(record.removeprefix("file://"), "parts").iterdir():
        data = bytearray(part.read_bytes())
        middle = len(data) // 2
        data[middle : middle + 64] = bytes(byte ^ 0xFF for byte in data[middle : middle + 64])
        part.write_bytes(data)


def test_a_job_whose_base_record_is_damaged_returns_once_to_the_newest_record_before_its_chain(tmp_path: Path) -> None:
    with site_at(tmp_path / "home") as site, live_job(site, "damaged-base", interval="1s", deltas=DELTAS) as job:
        wait_for(job.has_workers(2), PATIENCE_SECONDS, "two workers that train")
        held: list[list[str]] = []
        positions: dict[str, StreamPositions] = {"": positions_of("")}

        def lose_server_of_damaged_chain() -> bool:
            (master,) = pod_processes(job.job_id, "master", site.home)
            # No newer record may be complete before the server is gone.
            master.suspend()
            try:
                held[:] = chains(job)
                if len(held) < 2 or len(held[-1]) < CHAIN:
                    return False
                # Damaged records are deleted when the next one is complete.
                positions.update((uri, positions_of(uri)) for chain in held for uri in chain)
                damage(held[-1][0])
                pod_processes(job.job_id, "ps-0", site.home)[0].kill()
                return True
            finally:
                master.resume()

        wait_for(
            lambda: [len(chain) for chain in chains(job)][-2:] == [CHAIN, CHAIN] and lose_server_of_damaged_chain(),
            PATIENCE_SECONDS,
            "a chain of deltas after another one",
        )
        *_, (*_, before), (base, *_, newest) = held
        wait_for(lambda: job.metrics().generation == 2, PATIENCE_SECONDS, "the second rollback")
        wait_for(job.has_workers(2), PATIENCE_SECONDS, "two workers that train again")
        wait_for(lambda: chains(job)[-1][0] not in held[-1] + held[-2], PATIENCE_SECONDS, "a record after the rollback")
        metrics = job.train_to_the_end()
        accounts, story = job.accounts(positions.__getitem__)
        assert not set(held[-1]) & {uri for chain in chains(job) for uri in chain}
    words = [(entry.what, entry.cause) for entry in story.timeline]
    assert [what for what, _ in words if what.startswith("rolled back")] == [
        f"rolled back to {newest}, generation 1",
        f"rolled back to {before}, generation 2",
    ]
    ((what, cause),) = [each for each in words if "damaged" in each[0] and each[0].startswith("found")]
    assert what == f"found {base} damaged" and "checksum differs" in cause
    # The server that was killed is the only one that was replaced.
    assert sum(what.startswith("lost ") for what, _ in words) == 1
    assert not accounts.problems and accounts.lost == 0
    assert metrics.generation == 2 and metrics.shards_done == metrics.shards_total
