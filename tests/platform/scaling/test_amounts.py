from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.history import Sizes
from elastrec.platform.scaling.amounts import Allocation, Capacity, Change, PriceList, Resources
from elastrec.platform.scaling.types import JobProfile, Limits, ModelShape
from elastrec.platform.specs.errors import ScalingError
from tests.platform.scaling.jobs import GIB, allocation, profile


def test_a_price_list_without_a_resource_is_refused_by_name() -> None:
    with pytest.raises(ScalingError, match=r"prices of west: without gibibyte_hour .*all of core_hour, gibibyte_hour"):
        PriceList.of({"core_hour": 0.04}, "west")


def test_a_price_for_something_unknown_is_refused() -> None:
    with pytest.raises(ScalingError, match="gpu_hour"):
        PriceList.of({"core_hour": 0.04, "gibibyte_hour": 0.01, "gpu_hour": 2.0})


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -0.1])
def test_a_price_is_a_number_of_at_least_zero(wrong: float) -> None:
    with pytest.raises(ScalingError, match=r"prices\.core_hour"):
        PriceList(core_hour=wrong, gibibyte_hour=0.1)


def test_when_everything_is_free_plans_cannot_be_compared() -> None:
    with pytest.raises(ScalingError, match="at least one price above 0"):
        PriceList(core_hour=0.0, gibibyte_hour=0.0)


def test_an_hour_costs_cores_and_memory() -> None:
    prices = PriceList(core_hour=0.5, gibibyte_hour=0.25)
    assert prices.per_hour(Resources(4.0, 8.0 * GIB)) == pytest.approx(4.0)


@pytest.mark.parametrize(
    "field, wrong", [("workers", 0), ("parameter_servers", -1), ("worker_cores", math.nan), ("worker_memory_bytes", 0)]
)
def test_an_allocation_that_no_cluster_can_grant_is_refused(field: str, wrong: float) -> None:
    with pytest.raises(ScalingError, match=f"{field}: .* is not allowed"):
        msgspec.structs.replace(allocation(), **{field: wrong})


def test_an_allocation_has_the_fields_of_a_job_record() -> None:
    assert set(Allocation.__struct_fields__) == set(Sizes.__struct_fields__)


def test_changes_lists_the_kinds_of_change_between_allocations() -> None:
    now = allocation(2, 1)
    assert now.changes(now) == frozenset()
    assert now.changes(allocation(3, 1)) == {Change.WORKERS}
    assert now.changes(allocation(2, 2, server_cores=4)) == {Change.SERVERS, Change.SERVER_SIZE}


@settings(deadline=None)
@given(st.floats(-100, 100), st.floats(-100, 100), st.floats(-100, 100), st.floats(-100, 100))
def test_a_change_that_returns_resources_always_fits(
    cores: float, memory: float, free_cores: float, free_memory: float
) -> None:
    needs = Resources(-abs(cores), -abs(memory) * GIB)
    assert needs.fits(Resources(free_cores, free_memory * GIB))


def test_nothing_that_needs_more_fits_into_an_overdrawn_cluster() -> None:
    assert not Resources(1.0, 0.0).fits(Resources(-5.0, 100.0 * GIB))
    assert Resources(-1.0, 0.0).fits(Resources(-5.0, 100.0 * GIB))


def test_a_pod_larger_than_every_node_is_seen() -> None:
    capacity = Capacity(free=Resources(100.0, 1000.0 * GIB), largest_pod=Resources(4.0, 8.0 * GIB))
    assert capacity.holds_pods_of(allocation())
    assert not capacity.holds_pods_of(allocation(server_cores=6))


def test_a_profile_survives_json() -> None:
    job = profile()
    assert msgspec.json.decode(msgspec.json.encode(job), type=JobProfile) == job


@pytest.mark.parametrize("wrong", [math.nan, -1.0, math.inf])
def test_a_wrong_count_of_remaining_samples_is_refused(wrong: float) -> None:
    with pytest.raises(ScalingError, match="remaining_samples"):
        profile(remaining_samples=wrong)


def test_limits_that_hold_nothing_are_refused() -> None:
    with pytest.raises(ScalingError, match=r"limits\.workers"):
        Limits(workers=(4, 2))


def test_a_batch_of_nothing_is_refused() -> None:
    with pytest.raises(ScalingError, match="batch_size"):
        ModelShape(batch_size=0, dense_bytes=0, embedding_dimension=4)
