"""Only one master is active: each term is taken by one master, and the highest one is visible to all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from elastrec.checkpoints import StoreError, expect_existing_stores, open_store, prune
from elastrec.checkpoints.stores import local_store
from elastrec.checkpoints.stores.store import Store
from elastrec.checkpoints.terms import (
    SupersededError,
    Term,
    check_term,
    conclude,
    concluded_term,
    list_terms,
    newest_term,
    take_term,
    terms_folder,
)
from elastrec.platform.specs.errors import CheckpointError


def take(store: Store, holder: str, address: str = "host:1", base: str = "", **options: Any) -> Term:
    return take_term(store, "clicks", "clicks-1", holder=holder, address=address, base=lambda: base, **options)


def terms(store: Store) -> list[tuple[int, str]]:
    return [(term.term, term.holder) for term in list_terms(store, "clicks", "clicks-1")]


def test_terms_are_numbered_from_one_and_name_their_holders(store: Store) -> None:
    assert newest_term(store, "clicks", "clicks-1") is None
    first = take(store, "a")
    second = take(store, "b", "host:2", base="s3://records/1")
    assert (first.term, first.base, second.term) == (1, "", 2)
    assert newest_term(store, "clicks", "clicks-1") == second
    assert (second.holder, second.address, second.base) == ("b", "host:2", "s3://records/1")
    assert list_terms(store, "clicks", "clicks-1") == [first, second]
    assert list_terms(store, "clicks", "clicks-2") == []


def test_masters_that_start_concurrently_get_different_terms(store: Store) -> None:
    together = threading.Barrier(8)

    def start(holder: str) -> Term:
        together.wait()
        return take(store, holder)

    holders = [f"master-{number}" for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(start, holders))
    assert sorted(term.term for term in taken) == list(range(1, 9))
    assert [term.holder for term in taken] == holders
    assert terms(store) == sorted((term.term, term.holder) for term in taken)


def test_a_master_keeps_its_term_at_its_address_and_takes_the_next_at_another(store: Store) -> None:
    assert take(store, "a") == take(store, "a")
    assert take(store, "a", "host:2").term == 2
    assert terms(store) == [(1, "a"), (2, "a")]


def put_with(store: Store, answer: Callable[[Callable[[], bool]], bool]) -> None:
    """Lets `answer` decide what the next put-if-absent does and says; those after it are as usual."""
    put = store.put_if_absent

    def put_if_absent(key: str, data: Any) -> bool:
        store.put_if_absent = put  # type: ignore[method-assign]
        return answer(lambda: put(key, data))

    store.put_if_absent = put_if_absent  # type: ignore[method-assign]


def test_a_term_whose_confirmation_was_lost_is_recognised_and_not_taken_twice(store: Store) -> None:
    assert store.conditional_writes()

    def lose_answer(put: Callable[[], bool]) -> bool:
        assert put()
        raise StoreError("the connection broke")

    put_with(store, lose_answer)
    assert take(store, "a", wait=lambda seconds: None).term == 1
    assert terms(store) == [(1, "a")]


def test_a_master_that_was_killed_while_it_took_a_term_leaves_no_file_of_it(store: Store) -> None:
    folder = terms_folder("clicks", "clicks-1")
    for number, is_taken in ((1, False), (1, True), (2, False)):
        # A process that is killed neither closes nor aborts: before the term exists, or right after that.
        store.open_write(f"{folder}/{number:08d}.json").write(b"half")
        take(store, "a", f"host:{number}")
        assert terms(store) == [(earlier, "a") for earlier in range(1, number + 1)], is_taken
        # In HDFS, a concurrent writer whose file is deleted could not tell this from an error (`drop_unfinished`).
        assert not store.unfinished(folder) or store.uri.startswith("webhdfs:")


def test_a_refused_retry_of_an_own_write_does_not_count_as_lost(store: Store) -> None:
    # The client's own retry meets the file of the first try and reports that one exists.
    assert store.conditional_writes()
    put_with(store, lambda put: not put())
    assert take(store, "a").term == 1
    assert terms(store) == [(1, "a")]


def test_a_conflict_in_which_no_master_gets_the_number_is_retried(store: Store) -> None:
    assert store.conditional_writes()
    put_with(store, lambda put: False)
    assert take(store, "a").term == 1


def test_a_master_that_loses_the_race_reads_its_starting_record_again(store: Store) -> None:
    assert store.conditional_writes()
    bases = iter(["before", "after", "after"])

    def rival_first(put: Callable[[], bool]) -> bool:
        take(open_store(store.uri), "rival")
        return put()

    put_with(store, rival_first)
    term = take_term(store, "clicks", "clicks-1", holder="a", address="host:1", base=lambda: next(bases))
    assert (term.term, term.base) == (2, "after")


def test_a_record_that_is_committed_until_the_term_is_taken_becomes_the_base_of_the_next_term(store: Store) -> None:
    bases = iter(["pruned since", *["newest"] * 3])
    term = take_term(store, "clicks", "clicks-1", holder="a", address="host:1", base=lambda: next(bases))
    assert (term.term, term.base) == (2, "newest")
    assert [found.base for found in list_terms(store, "clicks", "clicks-1")] == ["pruned since", "newest"]


def test_a_master_whose_journal_ends_before_another_masters_term_takes_none(store: Store) -> None:
    take(store, "a")
    assert take(store, "a", "host:2", after=1).term == 2
    take(store, "b", "host:3")
    with pytest.raises(SupersededError, match="the master at host:3 has taken term 3; this one had term 2"):
        take(store, "a", "host:4", after=2)
    assert terms(store) == [(1, "a"), (2, "a"), (3, "b")]


def test_an_unreachable_store_is_waited_for_and_never_counts_as_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_store, "_must_exist", False)
    root = tmp_path / "store"
    store = open_store(root)
    store.create()
    take(store, "a")
    expect_existing_stores()
    root.rename(tmp_path / "away")
    root.mkdir()  # the mount point
    with pytest.raises(StoreError):
        newest_term(store, "clicks", "clicks-1")
    with pytest.raises(StoreError):
        check_term(store, "clicks", "clicks-1", 1, "a")
    waits: list[float] = []

    def come_back(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            root.rmdir()
            (tmp_path / "away").rename(root)

    assert take(store, "b", wait=come_back).term == 2
    assert waits == sorted(waits) and len(waits) == 3


def test_a_check_passes_until_another_master_has_a_higher_term(store: Store) -> None:
    first = take(store, "a")
    check_term(store, "clicks", "clicks-1", first.term, "a")
    # Killed before it could note that it had moved: the higher term is its own.
    take(store, "a", "host:2")
    check_term(store, "clicks", "clicks-1", first.term, "a")
    take(store, "b", "host:3")
    with pytest.raises(SupersededError, match="the master at host:3 has taken term 3; this one had term 1"):
        check_term(store, "clicks", "clicks-1", first.term, "a")


def test_a_damaged_term_keeps_its_number(store: Store) -> None:
    take(store, "a")
    store.put(f"{terms_folder('clicks', 'clicks-1')}/00000002.json", b"{")
    assert take(store, "b").term == 3
    assert terms(store) == [(1, "a"), (2, ""), (3, "b")]


def test_other_files_beside_the_terms_are_none(store: Store) -> None:
    take(store, "a")
    store.put(f"{terms_folder('clicks', 'clicks-1')}/launch.json", b"{}")
    assert terms(store) == [(1, "a")]


def test_exhausted_term_numbers_are_an_error(store: Store) -> None:
    store.put(f"{terms_folder('clicks', 'clicks-1')}/99999999.json", b"{}")
    with pytest.raises(CheckpointError, match="term 100000000 is not allowed; allowed: 1 to 99999999"):
        take(store, "a")


def test_pruning_never_touches_a_term(store: Store) -> None:
    take(store, "a")
    take(store, "b")
    prune(store, "clicks", "clicks-1", keep=0)
    assert terms(store) == [(1, "a"), (2, "b")]


def test_a_concluded_run_records_its_last_term(store: Store) -> None:
    conclude(store, "clicks", "clicks-1")
    assert concluded_term(store, "clicks", "clicks-1") == 0
    take(store, "a")
    take(store, "b")
    conclude(store, "clicks", "clicks-1")
    take(store, "c")
    assert concluded_term(store, "clicks", "clicks-1") == 2
    assert concluded_term(store, "clicks", "clicks-2") == 0


def test_of_two_masters_with_one_number_in_a_store_without_conditional_puts_the_last_writer_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, slow = open_store(str(tmp_path)), open_store(str(tmp_path))
    kind, put, first = type(store), type(store).put, list[Term]()

    def put_late(self: Store, key: str, data: bytes) -> None:
        # The slow master has seen that the number is free, and the other one takes it before the slow one's put.
        if self is slow and not first:
            first.append(take(store, "a"))
        put(self, key, data)

    monkeypatch.setattr(kind, "conditional_writes", lambda self: False)
    monkeypatch.setattr(kind, "put", put_late)
    last = take(slow, "b", address="host:2")
    assert (first[0].term, last.term) == (1, 1)
    check_term(store, "clicks", "clicks-1", 1, "b")
    with pytest.raises(SupersededError, match="host:2 has taken term 1"):
        check_term(store, "clicks", "clicks-1", 1, "a")


def test_a_damaged_file_of_its_own_term_does_not_end_a_master(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    own = take(store, "a")
    store.put(f"{terms_folder('clicks', 'clicks-1')}/{own.term:08d}.json", b"{")
    check_term(store, "clicks", "clicks-1", own.term, "a")
