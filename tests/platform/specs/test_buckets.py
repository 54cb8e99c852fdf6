"""Buckets are distributed evenly, and few of them move."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from elastrec.platform.specs.buckets import balanced_owners, dense_buckets_for


def test_the_number_of_dense_buckets_follows_from_the_job_and_is_bounded() -> None:
    assert [dense_buckets_for(virtual) for virtual in (64, 256, 65_536)] == [64, 256, 256]


def test_without_owners_each_server_gets_neighbouring_buckets() -> None:
    assert balanced_owners(8, 3) == [0, 0, 0, 1, 1, 1, 2, 2]
    assert balanced_owners(2, 4) == [0, 1]
    assert balanced_owners(0, 0) == []


def test_an_added_server_is_given_buckets_and_no_other_one_moves() -> None:
    before = balanced_owners(256, 4)
    after = balanced_owners(256, 5, before)
    moved = [bucket for bucket in range(256) if before[bucket] != after[bucket]]
    assert len(moved) == 51 and {after[bucket] for bucket in moved} == {4}


def test_only_the_buckets_of_a_server_that_leaves_move() -> None:
    before = balanced_owners(12, 3)
    after = balanced_owners(12, 2, [None if owner == 1 else min(owner, 1) for owner in before])
    assert after == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]


@given(st.integers(1, 40), st.lists(st.integers(0, 7), min_size=1, max_size=40), st.integers(1, 8))
def test_servers_differ_by_one_bucket_at_most_and_no_assignment_moves_fewer(
    buckets: int, drawn: list[int], servers: int
) -> None:
    owners = [drawn[bucket % len(drawn)] for bucket in range(buckets)]
    before = [owner if owner < servers else None for owner in owners]
    after = balanced_owners(buckets, servers, before)
    least, larger = divmod(buckets, servers)
    held = Counter(after)
    sizes = sorted((held[server] for server in range(servers)), reverse=True)
    assert sizes == [least + 1] * larger + [least] * (servers - larger)
    # An assignment keeps at most as many buckets of a server as the server may have; sizes go best to those with most.
    had = sorted((before.count(server) for server in range(servers)), reverse=True)
    kept = sum(old == new for old, new in zip(before, after, strict=True))
    assert kept == sum(min(pair) for pair in zip(had, sizes, strict=True))
