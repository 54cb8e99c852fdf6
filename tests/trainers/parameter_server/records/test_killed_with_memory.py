"""A real master and real server processes: the successor of a killed server restores from the memory of the node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastrec.checkpoints.flash import PartMemory
from elastrec.platform.clusters.pods import MemoryVolume
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.transport.messages.observer import SaveNow
from tests.platform.master.stage import Stage
from tests.trainers.parameter_server.migration.server_processes import Servers, stage_of

pytestmark = pytest.mark.services

PLACE = "clicks-1-ps-0"


@pytest.fixture
def servers(tmp_path: Path) -> Servers:
    return Servers(tmp_path)


@pytest.fixture
def stage(tmp_path: Path, servers: Servers) -> Iterator[Stage]:
    with stage_of(tmp_path, servers, memory="16Mi") as made:
        yield made


def test_a_killed_servers_successor_restores_the_record_from_its_memory(stage: Stage, servers: Servers) -> None:
    stage.wait_for(Phase.TRAINING, 120)
    stage.call(SaveNow())
    stage.wait(lambda: stage.service.state.saves.completed == 1, 60)
    record = stage.service.state.recovery.record
    assert record is not None and "part_durable" in servers.log(PLACE)
    servers.processes[PLACE].kill()
    stage.wait(lambda: stage.service.state.phases.generation == 1, 60)
    stage.wait_for(Phase.TRAINING, 120)
    log = servers.log(f"{PLACE}-r1")
    restored = re.findall(r"restored .*bytes_from_memory=(\d+).*", log)
    assert len(restored) == 1 and int(restored[0]) > 0 and "memory_copy_damaged" not in log
    # It has opened the memory, and made the pages of its rows, before it was ordered to restore.
    assert log.index("memory_opened") < log.index("registered") and log.index("pages_made") < log.index("restored ")
    memory = PartMemory(servers.volume(MemoryVolume("ps-0", 2**24)), writes=False)
    assert record.uri in [part.uri for part in memory.parts()]
    memory.close()
