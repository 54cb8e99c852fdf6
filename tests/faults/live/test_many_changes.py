"""The contents of a long series of changes, and the rule by which processes count as grown."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from tests.faults.live.many_changes import MEMORY_BYTES, MOST_SERVERS, MOST_WORKERS, Change, Use, Watched, draw

USE = Use(rss_bytes=200 * 2**20, threads=20, files=40)


@given(st.integers(0, 2**32), st.integers(1, MOST_SERVERS), st.integers(1, MOST_WORKERS), st.sampled_from(MEMORY_BYTES))
def test_a_drawn_change_differs_from_the_present_shape(
    seed: int, servers: int, workers: int, memory_bytes: int
) -> None:
    drawn = draw(random.Random(seed), servers, workers, memory_bytes)
    now = {"parameter_servers": servers, "workers": workers, "parameter_server_memory_bytes": memory_bytes}
    assert (drawn.shape or drawn.moves_server) and not (drawn.moves_server and servers == MOST_SERVERS)
    assert all(now[name] != value for name, value in drawn.shape.items())
    assert 1 <= drawn.shape.get("parameter_servers", 1) <= MOST_SERVERS
    assert 1 <= drawn.shape.get("workers", 1) <= MOST_WORKERS


def test_a_hundred_changes_are_of_every_kind() -> None:
    drawn = [draw(source, 2, 2, MEMORY_BYTES[0]) for source in [random.Random(1)] for _ in range(100)]
    kinds = {(tuple(sorted(each.shape)), each.moves_server) for each in drawn}
    assert len(kinds) == 5 and Change({}, moves_server=True) in drawn


def watched(*uses: Use) -> Watched:
    return Watched({"master 17": list(uses)})


def test_a_process_with_equal_use_at_both_ends_has_not_grown() -> None:
    assert watched(*[USE] * 20).grown(20) == []


def test_a_process_that_leaks_a_thread_or_a_file_per_change_has_grown() -> None:
    threads = watched(*(Use(USE.rss_bytes, USE.threads + n, USE.files) for n in range(20)))
    files = watched(*(Use(USE.rss_bytes, USE.threads, USE.files + n) for n in range(20)))
    assert threads.grown(20) == ["master 17: threads went from 22 to 38"]
    assert files.grown(20) == ["master 17: files went from 42 to 58"]


def test_a_process_that_leaks_memory_per_change_has_grown() -> None:
    leaking = watched(*(Use(USE.rss_bytes + n * 4 * 2**20, USE.threads, USE.files) for n in range(20)))
    assert len(leaking.grown(20)) == 1


def test_a_process_that_was_replaced_on_the_way_is_not_compared() -> None:
    assert watched(USE, Use(2 * USE.rss_bytes, 90, 900)).grown(20) == []
