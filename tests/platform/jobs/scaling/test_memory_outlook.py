"""The memory that a master reports, and the resulting forecast."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from elastrec.platform.master.scaling.memory_seen import memory_seen
from elastrec.platform.scaling.amounts import Allocation
from elastrec.platform.scaling.memory import Action
from elastrec.platform.scaling.memory_outlook import MemoryOutlook, look_ahead, wish_of
from elastrec.platform.scaling.types import Limits, MemoryWish
from elastrec.platform.specs.text.loading import job_from_json
from elastrec.platform.transport.messages.profile import Profile, ServerUse, TableGrowth
from tests.platform.jobs.scaling.test_profiles import ONE, measured_profile

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
        "worker_used_bytes": 900 * MEBIBYTE,
        "samples_per_second": 10_000.0,
    }
    return measured_profile(**(values | changes))


def outlook(profile: Profile, largest_bytes: float = 2.0**36) -> MemoryOutlook:
    return look_ahead(memory_seen(job_from_json(profile.job_json), profile, largest_bytes), ALLOCATION)


def wish(profile: Profile, largest_bytes: float = 2.0**36, most_servers: int = 64) -> MemoryWish | None:
    limits = Limits(parameter_servers=(1, most_servers))
    return wish_of(ALLOCATION, outlook(profile, largest_bytes).forecast, limits)


def test_a_job_whose_tables_fit_to_the_end_requests_no_memory() -> None:
    profile = grown(remaining=1_000_000)
    found = outlook(profile).forecast
    assert found is not None and found.action is Action.NONE
    assert wish(profile) is None


def test_a_job_that_will_run_out_requests_memory_for_its_whole_length() -> None:
    profile = grown(remaining=2_000_000_000)
    found = wish(profile)
    assert found is not None
    assert found.allocation.parameter_server_memory_bytes > 2**30 and found.allocation.parameter_servers == 1
    assert found.seconds_to_limit is not None and 0 < found.seconds_to_limit < 200_000
    assert "more memory per server" in found.reason


def test_more_servers_are_requested_if_no_node_has_enough_memory() -> None:
    found = wish(grown(remaining=2_000_000_000), largest_bytes=2.0**30)
    assert found is not None and found.allocation.parameter_servers > 1 and "more servers" in found.reason


def test_servers_are_limited_by_the_job_file_and_the_reason_states_it() -> None:
    profile = grown(remaining=2_000_000_000)
    found = wish(profile, largest_bytes=2.0**30, most_servers=2)
    assert found is not None and found.allocation.parameter_servers == 2
    assert "the job is allowed 2 (scaling.maximum_parameter_servers) of this memory" in found.reason
    assert wish(profile, largest_bytes=2.0**30, most_servers=1) is None, "it has as many as it may have"


def test_a_hash_size_ends_the_growth() -> None:
    profile = grown(remaining=2_000_000_000)
    content = msgspec.json.decode(profile.job_json)
    content["spec"]["tables"] = {"user": {"hash_size": 100_000}}
    assert wish(msgspec.structs.replace(profile, job_json=msgspec.json.encode(content))) is None


@pytest.mark.parametrize(("epochs", "is_enough"), [(1, False), (2, False), (1000, True)])
def test_repeated_rows_bring_no_new_ids(epochs: int, is_enough: bool) -> None:
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
def test_with_too_few_measurements_servers_keep_all_of_their_memory(
    missing: dict[str, Any],
) -> None:
    found = outlook(grown(remaining=2_000_000_000, **missing))
    assert found.forecast is None and wish_of(ALLOCATION, found.forecast, Limits()) is None
    assert found.need.server_bytes(1) == ALLOCATION.parameter_server_memory_bytes
    assert found.need.server_bytes(2) * 2 == ALLOCATION.parameter_server_memory_bytes


def test_rows_need_more_at_the_end_than_now_and_the_margin_stays_free() -> None:
    profile = grown(remaining=1_000_000)
    need = outlook(profile).need
    (server,) = profile.servers
    assert need.server_bytes(1) > server.used_bytes / 0.9
    assert need.worker_bytes == pytest.approx(1000 * MEBIBYTE, rel=0.01)


def test_a_worker_without_measurements_needs_its_present_memory() -> None:
    found = outlook(grown(remaining=1_000_000, worker_used_bytes=0))
    assert found.need.worker_bytes == ALLOCATION.worker_memory_bytes
