"""The memory forecast on what a master tells."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from elastrec.platform.jobs.scaling.memory_outlook import memory_forecast, memory_wish
from elastrec.platform.scaling.amounts import Allocation
from elastrec.platform.scaling.memory import Action
from elastrec.platform.scaling.types import MemoryWish
from elastrec.platform.specs.text.loading import job_from_json
from elastrec.platform.transport.messages.profile import Profile, ServerUse, TableGrowth
from tests.platform.jobs.scaling.test_rounds import ONE, told

MEBIBYTE = 2**20
SAMPLES = [100_000 * 2**i for i in range(6)]
ALLOCATION = Allocation.of(ONE)


def grown(*, remaining: int, exponent: float = 0.8, **changes: Any) -> Profile:
    """One server of 1 GiB that holds 100 MiB and a table of 80 bytes per row."""
    rows = [round(2.0 * samples**exponent) for samples in SAMPLES]
    values: dict[str, Any] = {
        "remaining_samples": remaining,
        "trained_samples": SAMPLES[-1],
        "tables_growth": [TableGrowth(table="user", samples=SAMPLES, rows=rows, bytes_per_row=80.0)],
        "servers": [
            ServerUse(
                pod="ps-0", used_bytes=100 * MEBIBYTE + 80 * rows[-1], limit_bytes=2**30, table_bytes=80 * rows[-1]
            )
        ],
    }
    return told(**(values | changes))


def wish(profile: Profile, largest_bytes: float = 2.0**36) -> MemoryWish | None:
    return memory_wish(job_from_json(profile.job_json), profile, ALLOCATION, 10_000.0, largest_bytes)


def test_a_job_whose_tables_fit_to_the_end_wants_nothing() -> None:
    profile = grown(remaining=1_000_000)
    found = memory_forecast(job_from_json(profile.job_json), profile, 10_000.0, 2.0**36)
    assert found is not None and found.action is Action.NONE
    assert wish(profile) is None


def test_a_job_that_will_run_out_asks_for_what_holds_to_its_end() -> None:
    profile = grown(remaining=2_000_000_000)
    found = wish(profile)
    assert found is not None
    assert found.allocation.parameter_server_memory_bytes > 2**30 and found.allocation.parameter_servers == 1
    assert 0 < found.seconds_to_limit < 200_000 and "more memory per server" in found.reason


def test_where_no_node_has_so_much_more_servers_are_asked_for() -> None:
    found = wish(grown(remaining=2_000_000_000), largest_bytes=2.0**30)
    assert found is not None and found.allocation.parameter_servers > 1 and "more servers" in found.reason


def test_a_hash_size_ends_the_growth() -> None:
    profile = grown(remaining=2_000_000_000)
    content = msgspec.json.decode(profile.job_json)
    content["spec"]["tables"] = {"user": {"hash_size": 100_000}}
    assert wish(msgspec.structs.replace(profile, job_json=msgspec.json.encode(content))) is None


@pytest.mark.parametrize(("epochs", "is_enough"), [(1, False), (2, False), (1000, True)])
def test_rows_that_come_again_bring_no_new_ids(epochs: int, is_enough: bool) -> None:
    profile = grown(remaining=2_000_000_000)
    content = msgspec.json.decode(profile.job_json)
    content["spec"]["training"] = content["spec"].get("training", {}) | {"epochs": epochs}
    assert (wish(msgspec.structs.replace(profile, job_json=msgspec.json.encode(content))) is None) == is_enough


@pytest.mark.parametrize(
    "missing",
    [
        {"servers": []},
        {"tables_growth": []},
        {"tables_growth": [TableGrowth(table="user", samples=[1, 2], rows=[1, 2], bytes_per_row=80.0)]},
    ],
)
def test_before_there_is_enough_to_tell_nothing_is_wanted(missing: dict[str, Any]) -> None:
    assert wish(grown(remaining=2_000_000_000, **missing)) is None
