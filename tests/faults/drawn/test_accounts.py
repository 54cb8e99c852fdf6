"""The checks of a campaign detect lost and repeated samples."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from elastrec.checkpoints import Term
from elastrec.platform.master.machine.phases import NUMBERS_PER_TERM
from elastrec.platform.specs.splits import Begun, StreamPositions
from elastrec.platform.transport.messages.ledger import Explanation, TimelineEntry
from tests.faults.campaign.accounts import Accounts, Size, check_ledger, check_restores, journals
from tests.faults.campaign.watching import Hit, Sample, recovery_seconds

SIZE = Size(rows=250, shard_rows=100, epochs=1, seed=1, shuffle=False)
RECORD = "file:///records/one"
# Shard 0 was done, shard 1 in somebody's hands.
POSITIONS = StreamPositions(2, [Begun(1, 40, 1)])


def explanation_of(*what: str) -> Explanation:
    timeline = [TimelineEntry(seconds=0.0, unix_seconds=0.0, what=each) for each in what]
    return Explanation(job="j", phase="Succeeded", wall_seconds=1.0, parts={}, goodput=1.0, timeline=timeline)


def attempt(generation: int, shard: int, begin: int, end: int, number: int = 1) -> dict[str, Any]:
    return {
        "kind": "train", "generation": generation, "epoch": 0, "shard": shard, "attempt": number, "from": begin,
        "to": end,
    }  # fmt: skip


def accounts(attempts: list[dict[str, Any]], *what: str) -> Accounts:
    return check_ledger(
        attempts, explanation_of(*what), SIZE, {"": StreamPositions(0, []), RECORD: POSITIONS}.__getitem__
    )


WHOLE = [attempt(0, 0, 0, 100), attempt(0, 1, 0, 100), attempt(0, 2, 0, 50)]
ROLLED_BACK = f"rolled back to {RECORD}, generation 1"
AFTER = [attempt(0, 0, 0, 100), attempt(0, 1, 0, 90), attempt(0, 2, 0, 10)]


def test_the_ledger_of_an_undisturbed_job_has_no_contradiction() -> None:
    assert accounts(WHOLE) == Accounts()


def test_a_shard_that_another_worker_continues_is_neither_lost_nor_repeated() -> None:
    assert accounts([attempt(0, 1, 0, 30), *WHOLE[::2], attempt(0, 1, 30, 100, 2)]) == Accounts()


def test_untrained_rows_count_as_lost() -> None:
    found = accounts(WHOLE[:2])
    assert found.lost == 50 and not found.problems


def test_a_gap_inside_a_shard_is_a_contradiction() -> None:
    found = accounts([attempt(0, 1, 0, 30), *WHOLE[::2], attempt(0, 1, 40, 100, 2)])
    assert found.lost == 10
    assert len(found.problems) == 1 and "began at 40, but the shard stood at 30" in found.problems[0]


def test_a_repeat_without_a_rollback_is_a_contradiction() -> None:
    assert accounts([*WHOLE, attempt(0, 1, 0, 100, 2)]).problems


def test_rows_rolled_back_are_repeated_from_the_record_on() -> None:
    found = accounts([*AFTER, attempt(1, 1, 40, 100, 2), attempt(1, 2, 0, 50)], ROLLED_BACK)
    assert found == Accounts(lost=0, repeated=50 + 10)


def test_a_shard_that_kept_its_place_over_a_rollback_is_a_mixture_of_two_states() -> None:
    found = accounts([*AFTER, attempt(1, 1, 90, 100, 2), attempt(1, 2, 0, 50)], ROLLED_BACK)
    assert len(found.problems) == 1 and "generation 1" in found.problems[0]


def test_a_rollback_at_the_end_without_repetition_is_a_loss() -> None:
    assert accounts(WHOLE, ROLLED_BACK).lost == 60 + 50


def test_a_generation_that_the_timeline_lacks_is_a_contradiction() -> None:
    for later in (1, 2):
        found = accounts([*WHOLE, attempt(later, 1, 40, 100)], f"rolled back to {RECORD}, generation 2")
        assert found.problems == ["generation 1 began without a rollback"]


NEXT = NUMBERS_PER_TERM
BEGUN = {0: "", NEXT: RECORD}
LOST = [attempt(0, 0, 0, 100, 0), attempt(0, 1, 0, 40, 0)]
GONE_ON = [attempt(NEXT, 1, 40, 100), attempt(NEXT, 2, 0, 50)]


def accounts_of(attempts: list[dict[str, Any]], begun: dict[int, str], *what: str) -> Accounts:
    read = {"": StreamPositions(0, []), RECORD: POSITIONS}.__getitem__
    return check_ledger(attempts, explanation_of(*what), SIZE, read, begun)


def test_a_life_begins_with_each_holder_of_a_term_not_with_each_term() -> None:
    terms = [
        Term(term=number, holder=holder, address="a:1", base=base, positions="")
        for number, holder, base in ((1, "a", ""), (2, "a", RECORD), (3, "b", RECORD))
    ]
    assert journals(terms) == {0: "", 2 * NUMBERS_PER_TERM: RECORD}


def test_a_job_with_a_lost_journal_continues_at_its_records_positions() -> None:
    assert accounts_of([*LOST, *GONE_ON], BEGUN) == Accounts()
    # Also when the next rollback goes back to that record.
    again = [attempt(NEXT, 1, 40, 70), attempt(NEXT + 1, 1, 40, 100), attempt(NEXT + 1, 2, 0, 50)]
    found = accounts_of([*LOST, *again], BEGUN, f"rolled back to {RECORD}, generation {NEXT + 1}")
    assert found == Accounts(repeated=30)


def test_a_journal_that_is_lost_before_the_first_record_costs_all_rows_and_no_sample() -> None:
    whole = [{**line, "generation": NEXT} for line in WHOLE]
    assert accounts_of(whole, {0: "", NEXT: ""}) == Accounts()


def test_rows_that_are_lost_or_repeated_where_a_journal_was_lost_are_found() -> None:
    assert accounts_of([*LOST, GONE_ON[0]], BEGUN).lost == 50
    repeated = accounts_of([*LOST, attempt(NEXT, 1, 30, 100), GONE_ON[1]], BEGUN)
    assert "began at 30, but the shard stood at 40" in repeated.problems[0]
    unaccounted = accounts_of([LOST[0], *GONE_ON], BEGUN)
    assert unaccounted.problems == [f"generation {NEXT} began with 40 rows of shard 1, of which the ledger has 0"]


def test_servers_are_compared_with_the_record_from_which_a_journal_began() -> None:
    other = f"event=restored uri=file:///other rows=1 seconds=0 generation={NEXT}"
    problems = check_restores([[other], [other]], explanation_of(), BEGUN)
    assert any(f"generation {NEXT} restored ['file:///other'], wanted '{RECORD}'" in each for each in problems)


def test_servers_that_restored_two_records_are_found() -> None:
    first = f"level=info event=restored uri={RECORD} rows=3 tables_new=[] epoch=2 generation=1"
    other = first.replace("one", "two")
    story = explanation_of(ROLLED_BACK)
    (problem,) = check_restores([[first], [other]], story)
    assert "generation 1 restored" in problem
    (problem,) = check_restores([[first], [""]], story)
    assert "servers [1] do not say" in problem


def test_servers_that_restored_other_rows_than_the_record_has_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"level=info event=restored uri={RECORD} rows=3 tables_new=[] epoch=2 generation=1"
    held = {"C1": 4, "C2": 2}
    monkeypatch.setattr(
        "tests.faults.campaign.accounts.open_record", lambda uri: SimpleNamespace(manifest=SimpleNamespace(rows=held))
    )
    # The first server died while it restored; what counts is what its successor did.
    assert check_restores([[line.replace("rows=3", "rows=2"), line], [line]], explanation_of(ROLLED_BACK)) == []
    held["C2"] = 3
    (problem,) = check_restores([[line], [line]], explanation_of(ROLLED_BACK))
    assert "the servers restored 6 rows of 7" in problem


def sample(seconds: float, done: int, *, pods: str = "a b", whole: bool = True, phase: str = "Training") -> Sample:
    from elastrec.platform.specs.metrics import Phase

    return Sample(seconds, Phase(phase), done, 10, frozenset(pods.split()), frozenset(() if whole else pods.split()))


def test_recovery_ends_when_all_places_are_held_and_lost_ground_is_made_good() -> None:
    samples = [sample(0, 4), sample(2, 5), sample(3, 2, pods="a b2", whole=False), sample(4, 3, pods="a b2")]
    for_ever = [Hit("b", 1.0, float("inf"))]
    assert recovery_seconds(samples, for_ever) is None
    assert recovery_seconds([*samples, sample(6, 5, pods="a b2")], for_ever) == 5.0


def test_a_stop_without_an_effect_is_over_when_it_ends() -> None:
    samples = [sample(0, 4), sample(2, 5), sample(4, 6)]
    assert recovery_seconds(samples, [Hit("b", 1.0, 3.0)]) == 3.0
