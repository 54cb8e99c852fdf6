"""Tolerance for a job that cannot be observed: limits per kind of error, a total limit, and occasional log lines."""

from __future__ import annotations

from elastrec.operators.doubt import Doubt, Patience


def test_each_kind_of_doubt_has_its_own_limit_from_its_own_beginning() -> None:
    for doubt in Doubt:
        patience = Patience(every_seconds=15.0)
        assert not patience.add(doubt, 100.0)
        assert not patience.add(doubt, 100.0 + doubt.limit_seconds - 0.1)
        assert patience.add(doubt, 100.0 + doubt.limit_seconds)
    patience = Patience(every_seconds=15.0)
    patience.add(Doubt.UNREACHABLE, 0.0)
    assert not patience.add(Doubt.LOST, 100.0), "the job is unknown for the first time"


def test_kinds_that_take_turns_end_with_the_longest_limit() -> None:
    patience = Patience(every_seconds=15.0)
    kinds = (Doubt.SILENT, Doubt.UNREACHABLE)
    longest = max(doubt.limit_seconds for doubt in Doubt)
    ends = [now for now in range(0, 2000, 5) if patience.add(kinds[now // 5 % 2], float(now))]
    assert ends[0] == longest


def test_an_answer_resets_the_count() -> None:
    patience = Patience(every_seconds=15.0)
    patience.add(Doubt.SILENT, 0.0)
    patience.reset(299.0)
    assert not patience.add(Doubt.SILENT, 300.0)


def test_a_short_doubt_is_not_logged_and_a_long_one_now_and_then() -> None:
    patience = Patience(every_seconds=15.0)
    lines = []
    for now in range(40):
        patience.add(Doubt.SILENT, float(now))
        lines.append(patience.line("no answer", float(now)))
    assert [now for now, line in enumerate(lines) if line] == [15, 30]
    assert lines[15] == "its master does not answer, for 15 s so far; this try fails after 300 s: no answer"
    assert patience.reset(41.0) == "the job is observed again after 41 s"
    patience.add(Doubt.SILENT, 50.0)
    assert patience.reset(51.0) == ""
