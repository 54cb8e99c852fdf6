from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.scaling.amounts import Allocation, Capacity, Resources
from elastrec.platform.scaling.warm_start import (
    Features,
    PastJob,
    WarmStartSettings,
    prior_of,
    similarity,
    warm_start,
    with_memory_used,
)
from elastrec.platform.specs.errors import ScalingError
from tests.platform.scaling.jobs import GIB, allocation, coefficients

SETTINGS = WarmStartSettings()
TODAY = Features(
    categories={"architecture": "dlrm", "name": "clicks"},
    numbers={"training_rows": 1e8, "embedding_dimension": 16.0},
    sets={"tables": frozenset({"user", "item", "shop"})},
)
DEFAULT = allocation(1, 1)


def past(name: str, now: Allocation, features: Features = TODAY, **changes: object) -> PastJob:
    return msgspec.structs.replace(PastJob(job_id=name, features=features, allocation=now), **changes)


def with_rows(rows: float) -> Features:
    return msgspec.structs.replace(TODAY, numbers={**TODAY.numbers, "training_rows": rows})


words = st.sampled_from(["a", "b", "c"])
some_features = st.builds(
    Features,
    categories=st.dictionaries(words, words, max_size=3),
    numbers=st.dictionaries(words, st.floats(0, 1e12), max_size=3),
    sets=st.dictionaries(words, st.frozensets(words), max_size=2),
)


@settings(deadline=None)
@given(some_features, some_features)
def test_similarity_is_symmetric_and_a_share(one: Features, other: Features) -> None:
    there, back = similarity(one, other, SETTINGS), similarity(other, one, SETTINGS)
    assert there == back
    assert 0 <= there.total <= 1


def test_equal_jobs_are_alike_and_strangers_are_not() -> None:
    assert similarity(TODAY, TODAY, SETTINGS).total == 1.0
    stranger = Features(categories={"architecture": "deepfm", "name": "x"}, numbers={"y": 1.0}, sets={})
    assert similarity(TODAY, stranger, SETTINGS).total == 0.0


def test_every_type_of_feature_has_its_own_measure() -> None:
    found = similarity(
        TODAY,
        Features(
            categories={"architecture": "dlrm", "name": "searches"},
            numbers={"training_rows": 4e8, "embedding_dimension": 16.0},
            sets={"tables": frozenset({"user", "item", "page"})},
        ),
        SETTINGS,
    )
    assert found.categories == 0.5
    # A factor of 4 is half as similar, the dimension is equal.
    assert found.numbers == pytest.approx(0.75)
    assert found.sets == 0.5
    assert found.total == pytest.approx(0.4 * 0.5 + 0.4 * 0.75 + 0.2 * 0.5)


def test_the_most_similar_job_counts_most_as_algorithm_1_smooths() -> None:
    history = [
        past("near", allocation(12, 4), with_rows(1.1e8)),
        past("far", allocation(4, 2), with_rows(4e8)),
        past("middle", allocation(8, 3), with_rows(2e8)),
    ]
    found = warm_start(TODAY, history, DEFAULT, settings=WarmStartSettings(smoothing=0.6))
    assert found.smoothed["workers"] == pytest.approx(0.6 * 12 + 0.4 * (0.6 * 8 + 0.4 * 4))
    assert [each.job_id for each in found.contributions] == ["near", "middle", "far"]
    assert [each.share for each in found.contributions] == pytest.approx([0.6, 0.24, 0.16])
    assert found.allocation.workers == 10


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.floats(0.05, 1))
def test_shares_add_up_and_sizes_stay_between_those_of_the_past(workers: list[int], smoothing: float) -> None:
    history = [past(str(k), allocation(each, 1)) for k, each in enumerate(workers)]
    found = warm_start(TODAY, history, DEFAULT, settings=WarmStartSettings(most=20, smoothing=smoothing))
    assert math.fsum(each.share for each in found.contributions) == pytest.approx(1.0)
    assert min(workers) <= found.allocation.workers <= max(workers)


def test_only_the_most_similar_jobs_are_taken() -> None:
    history = [past(f"job-{k}", allocation(k + 1, 1), with_rows(1e8 * 1.1**k)) for k in range(9)]
    found = warm_start(TODAY, history, DEFAULT, settings=WarmStartSettings(most=3))
    assert [each.job_id for each in found.contributions] == ["job-0", "job-1", "job-2"]


def test_among_equals_the_latest_job_is_the_most_similar() -> None:
    history = [past("new", allocation(8, 1), ended_unix_seconds=2.0), past("old", allocation(2, 1))]
    assert [each.job_id for each in warm_start(TODAY, history, DEFAULT).contributions] == ["new", "old"]


def test_a_job_that_ran_out_of_memory_counts_with_its_need() -> None:
    needed = msgspec.structs.replace(allocation(), parameter_server_memory_bytes=16 * GIB)
    found = warm_start(TODAY, [past("oom", allocation(), needed=needed)], DEFAULT)
    assert found.allocation.parameter_server_memory_bytes == 16 * GIB
    assert found.contributions[0].is_needed


def test_a_job_with_too_much_memory_counts_with_its_used_memory() -> None:
    used = with_memory_used(allocation(), 2.0 * GIB)
    assert used.parameter_server_memory_bytes == 2.5 * GIB
    assert msgspec.structs.replace(used, parameter_server_memory_bytes=4 * GIB) == allocation()


def test_nothing_counts_with_more_memory_than_it_had_because_it_was_full() -> None:
    assert with_memory_used(allocation(), 3.9 * GIB) == allocation()


@pytest.mark.parametrize(("rows", "expected"), [(3e8, 6 * GIB), (1e8, 2 * GIB), (5e7, 2 * GIB)])
def test_a_jobs_needs_grow_with_the_rows_of_the_next_one_and_never_fall(rows: float, expected: int) -> None:
    needed = msgspec.structs.replace(allocation(), parameter_server_memory_bytes=2 * GIB)
    found = warm_start(with_rows(rows), [past("smaller", allocation(), needed=needed)], DEFAULT)
    assert found.allocation.parameter_server_memory_bytes == expected


def test_fewer_servers_get_the_memory_that_the_tables_of_the_most_similar_job_need() -> None:
    four = msgspec.structs.replace(allocation(1, 4), parameter_server_memory_bytes=6 * GIB)
    one = msgspec.structs.replace(allocation(1, 1), parameter_server_memory_bytes=1 * GIB)
    history = [past("tiny", one, with_rows(4e7), needed=one), past("alike", four, needed=four)]
    found = warm_start(TODAY, history, DEFAULT).allocation
    assert found.parameter_servers == 3
    assert found.parameter_servers * found.parameter_server_memory_bytes >= 4 * 6 * GIB


def test_without_a_similar_job_the_sizes_and_the_reason_come_from_the_job_file() -> None:
    found = warm_start(TODAY, [past("x", allocation(9, 9), Features(categories={"other": "x"}))], DEFAULT)
    assert found.allocation == DEFAULT
    assert "cold start" in found.reason
    assert "none of 1 finished jobs" in found.reason
    assert warm_start(TODAY, [], DEFAULT).allocation == DEFAULT


def test_the_most_similar_job_with_a_model_gives_the_prior() -> None:
    history = [
        past("near", allocation(), with_rows(1e8)),
        past("next", allocation(), with_rows(1.5e8), coefficients=coefficients()),
        past("far", allocation(), with_rows(5e8), coefficients=coefficients(seconds=9.0)),
    ]
    prior = prior_of(TODAY, history)
    assert prior is not None
    assert prior.source == "next"
    assert prior.coefficients == coefficients()
    assert 0.5 < prior.strength < 1.0


def test_memory_is_rounded_up_and_cores_to_whole_steps() -> None:
    odd = msgspec.structs.replace(allocation(worker_cores=1.3), parameter_server_memory_bytes=4 * GIB + 1)
    found = warm_start(TODAY, [past("x", odd)], DEFAULT).allocation
    assert found.worker_cores == 1.25
    assert found.parameter_server_memory_bytes == 4 * GIB + 128 * 2**20


def test_sizes_that_cannot_be_granted_are_cut_and_named() -> None:
    tight = Capacity(free=Resources(5.0, 1000.0 * GIB))
    found = warm_start(TODAY, [past("x", allocation(40, 1))], DEFAULT, tight)
    assert found.allocation.workers == 4
    assert "40 workers cut to 4" in found.reason


def test_more_servers_replace_those_that_are_larger_than_a_node() -> None:
    nodes = Capacity(free=Resources(1000.0, 1000.0 * GIB), largest_pod=Resources(32.0, 16.0 * GIB))
    before = msgspec.structs.replace(allocation(4, 2), parameter_server_memory_bytes=20 * GIB)
    found = warm_start(TODAY, [past("x", before)], DEFAULT, nodes)
    # 40 GiB of rows.
    after = found.allocation
    assert (after.parameter_servers, after.parameter_server_memory_bytes) == (3, 13.375 * GIB)
    assert "2 servers of 20 GiB replaced by 3 of 13.4 GiB" in found.reason
    assert "less than" not in found.reason
    few = warm_start(TODAY, [past("x", before)], DEFAULT, nodes, servers=(1, 2))
    after = few.allocation
    assert (after.parameter_servers, after.parameter_server_memory_bytes) == (2, 16 * GIB)
    assert "2 of 16 GiB, because of the largest node, which is less than similar jobs needed" in few.reason


def test_memory_of_workers_that_no_node_has_is_cut_and_named() -> None:
    nodes = Capacity(free=Resources(1000.0, 1000.0 * GIB), largest_pod=Resources(32.0, 16.0 * GIB))
    before = msgspec.structs.replace(allocation(4, 2), worker_memory_bytes=20 * GIB)
    found = warm_start(TODAY, [past("x", before)], DEFAULT, nodes)
    assert found.allocation.worker_memory_bytes == 16 * GIB
    assert "memory per worker cut from 20 GiB to 16 GiB by the largest node" in found.reason


@pytest.mark.parametrize("wrong", [math.nan, -1.0, math.inf])
def test_a_foreign_number_only_makes_a_job_less_similar(wrong: float) -> None:
    odd = with_rows(wrong)
    assert similarity(TODAY, odd, SETTINGS).numbers == pytest.approx(0.5)


def test_numbers_too_far_apart_to_divide_are_simply_not_alike() -> None:
    assert similarity(with_rows(1e12), with_rows(5e-324), SETTINGS).numbers == pytest.approx(0.5)


def test_a_smoothing_of_nothing_is_refused() -> None:
    with pytest.raises(ScalingError, match=r"warm_start\.smoothing"):
        WarmStartSettings(smoothing=0.0)


STRANGER = msgspec.structs.replace(TODAY, categories={"architecture": "dlrm", "name": "conversions"})
memories = st.integers(1, 256).map(lambda steps: steps * 128 * 2**20)
sized = st.builds(
    lambda workers, servers, worker_bytes, server_bytes: msgspec.structs.replace(
        allocation(workers, servers), worker_memory_bytes=worker_bytes, parameter_server_memory_bytes=server_bytes
    ),
    st.integers(1, 20), st.integers(1, 8), memories, memories,
)  # fmt: skip


@settings(deadline=None)
@given(asked=sized, others=st.lists(st.tuples(sized, sized), min_size=1, max_size=6))
def test_a_model_that_has_not_run_never_starts_with_less_memory_than_its_owner_asks_for(
    asked: Allocation, others: list[tuple[Allocation, Allocation]]
) -> None:
    history = [past(f"other-{n}", ran, TODAY, needed=needed) for n, (ran, needed) in enumerate(others)]
    found = warm_start(STRANGER, history, asked)
    assert found.contributions, "they are similar in all but the name"
    got = found.allocation
    assert got.worker_memory_bytes >= asked.worker_memory_bytes
    assert got.parameter_server_memory_bytes >= asked.parameter_server_memory_bytes
    assert (
        got.parameter_servers * got.parameter_server_memory_bytes
        >= asked.parameter_servers * asked.parameter_server_memory_bytes
    )
    assert "none of this name" in found.reason


def test_a_model_that_has_run_gives_memory_back_that_it_did_not_need() -> None:
    needed = msgspec.structs.replace(allocation(), parameter_server_memory_bytes=GIB)
    found = warm_start(TODAY, [past("own", allocation(), needed=needed)], DEFAULT)
    assert found.allocation.parameter_server_memory_bytes == GIB < DEFAULT.parameter_server_memory_bytes


def test_the_memory_of_a_model_that_has_run_is_its_own_and_not_that_of_a_closer_stranger() -> None:
    large = msgspec.structs.replace(allocation(1, 1), parameter_server_memory_bytes=8 * GIB)
    small = msgspec.structs.replace(allocation(1, 1), parameter_server_memory_bytes=GIB)
    own = past("own", large, with_rows(0.4e8), needed=large)
    stranger = past("stranger", small, STRANGER, needed=small)
    assert warm_start(TODAY, [own, stranger], DEFAULT).allocation.parameter_server_memory_bytes >= 8 * GIB


@pytest.mark.parametrize(
    "numbers", [{"training_rows": 1e5, "embedding_dimension": 16.0}, {"training_rows": 1e8, "embedding_dimension": 1.0}]
)
def test_jobs_that_differ_in_numbers_of_memory_are_not_similar(numbers: dict[str, float]) -> None:
    other = past("other", allocation(9, 9), msgspec.structs.replace(TODAY, numbers=numbers))
    found = similarity(TODAY, other.features, SETTINGS)
    assert found.total > 0.5 and found.memory is not None and found.memory < 0.5
    assert warm_start(TODAY, [other], DEFAULT).allocation == DEFAULT


def test_the_owner_of_a_job_makes_it_no_more_similar() -> None:
    with_team = msgspec.structs.replace(TODAY, categories={**TODAY.categories, "team": "ads"})
    assert similarity(TODAY, TODAY, SETTINGS).total == 1.0 > similarity(TODAY, with_team, SETTINGS).total
