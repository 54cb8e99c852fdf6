"""Only one master is active: limits of a superseded master, and the term of its successor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from elastrec.checkpoints import (
    SupersededError,
    catalog,
    list_records,
    list_terms,
    newest_records,
    newest_term,
    take_term,
)
from elastrec.platform.master.service import service, term_watch
from elastrec.platform.master.service.resumption import resumed_from
from elastrec.platform.master.service.service import JobService
from elastrec.platform.specs.errors import TransportError
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.transport.messages.ledger import Explanation, GetExplanation
from elastrec.platform.transport.messages.observer import GetStatus, SaveNow, Status
from tests.platform.master.masters import Make, committed, rival, saved, stage_fixture, trained  # noqa: F401

pytestmark = pytest.mark.usefixtures("some_fleet")


def test_a_job_has_a_term_before_its_first_pod_and_every_directive_and_record_names_it(stage: Make):
    s = stage()
    terms_at_creation: list[int] = []
    play = s.cluster.on_create

    def look(spec: Any) -> None:
        term = newest_term(s.request.store, s.job_name, s.request.job_id)
        assert term is not None and term.address == s.address
        terms_at_creation.append(term.term)
        play(spec)

    s.cluster.on_create = look
    s.start()
    trained(s, 5)
    uri = saved(s)
    assert terms_at_creation == [1, 1, 1, 1]
    assert s.service.state.directive("clicks-1-worker-0", s.pods["clicks-1-worker-0"].incarnation).term == 1
    assert [(found, manifest.term) for found, manifest in list_records(s.request.store, s.job_name)] == [(uri, 1)]


def test_a_killed_master_with_its_journal_continues_in_its_term(stage: Make):
    s = stage()
    s.start()
    trained(s, 5)
    s.stop()
    s.start()
    s.wait_for(Phase.SUCCEEDED)
    assert [term.term for term in list_terms(s.request.store, s.job_name, s.request.job_id)] == [1]
    assert s.rows_trained() == [1] * 4000


def test_a_master_that_moved_with_its_journal_takes_the_next_term_and_its_pods_follow(stage: Make):
    s = stage()
    s.start()
    trained(s, 5)
    before = s.address
    s.stop()
    s.address = ""
    s.start()
    assert s.address != before
    s.wait_for(Phase.SUCCEEDED)
    terms = list_terms(s.request.store, s.job_name, s.request.job_id)
    assert [(term.term, term.address) for term in terms] == [(1, before), (2, s.address)]
    # The journal knows what every pod holds: nothing is rolled back, and nobody is replaced.
    assert s.service.state.phases.generation == 0
    assert not s.service.state.membership.losses
    assert s.rows_trained() == [1] * 4000
    timeline = [entry.what for entry in s.call(GetExplanation(), Explanation).timeline]
    assert f"the master moved to {s.address} (term 2)" in timeline


def test_a_record_that_an_earlier_master_prunes_while_the_term_is_taken_is_not_continued_from(
    stage: Make, monkeypatch: pytest.MonkeyPatch
):
    s, successor = stage(rows=100_000, keep=1), stage("another", rows=100_000, keep=1)
    s.start()
    trained(s, 5)
    first = saved(s)
    newer: list[str] = []

    def find_and_be_overtaken(*arguments: Any) -> Any:
        found = resumed_from(*arguments)
        if not newer:
            newer.append(saved(s))
            s.wait(lambda: committed(s) == newer)
        return found

    monkeypatch.setattr(service, "resumed_from", find_and_be_overtaken)
    successor.start()
    state = successor.service.state
    assert newer and newer != [first]
    assert state.recovery.uri == newer[0] and state.phases.term == 3


def test_a_superseded_master_commits_nothing_ends_and_touches_no_pod(stage: Make):
    s = stage(rows=100_000)
    s.start()
    trained(s, 5)
    first = saved(s)
    pods = set(s.cluster.pods)
    rival(s, first)
    assert s.call(SaveNow()).accepted
    s.wait(lambda: bool(s.service.superseded))
    s.service.wait_until_done()
    assert "the master at 127.0.0.1:9 has taken term 2; this one had term 1" in s.service.superseded
    assert committed(s) == [first]
    with pytest.raises(TransportError, match="has taken term 2"):
        s.call(GetStatus(), Status, seconds=0.3)
    s.service.close()
    assert set(s.cluster.pods) == pods and not s.cluster.deleted
    assert s.service.state.phase is Phase.TRAINING


def test_a_late_record_of_an_older_master_is_never_the_newest(stage: Make, monkeypatch: pytest.MonkeyPatch):
    # Of its two records it would keep one.
    s = stage(rows=100_000, keep=1)
    s.start()
    trained(s, 5)
    first = saved(s)
    check = s.service._term_watch.check
    stolen: list[int] = []

    def steal() -> None:
        check()
        # Between this master's look at the terms and its manifest another one takes over.
        if not stolen:
            stolen.append(rival(s, first))

    monkeypatch.setattr(s.service._term_watch, "check", steal)
    late = saved(s)
    assert stolen == [2]
    # The next look finds the other master: before another commit rather than with the half minute's regular look.
    assert s.call(SaveNow()).accepted
    s.wait(lambda: bool(s.service.superseded))
    # Neither was anything pruned after it, nor does the successor's history hold the late record.
    assert committed(s) == [first, late]
    newest = next(newest_records(s.request.store, s.job_name, job_id=s.request.job_id))
    assert newest.uri == first


def test_a_superseded_master_does_not_replace_silent_pods(stage: Make):
    s = stage(rows=100_000, silence=1.5)
    s.start()
    trained(s, 5)
    rival(s)
    for pod in s.pods.values():
        pod.killed.set()  # they are heard elsewhere
    s.wait(lambda: bool(s.service.superseded))
    assert not s.cluster.deleted and not s.service.state.membership.losses


def test_a_master_that_has_nothing_to_do_still_finds_that_it_was_superseded(
    stage: Make, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(term_watch, "PERIOD_SECONDS", 0.05)
    # So many that the job's end, where it would look by itself, is out of reach.
    s = stage(rows=5_000_000)
    s.start()
    trained(s, 5)
    pods = set(s.cluster.pods)
    # It saves nothing, hears everybody, and has no pod to make: nothing else makes it look.
    assert s.service.state.plan.save_interval_seconds == 0
    rival(s)
    s.wait(lambda: bool(s.service.superseded))
    s.service.wait_until_done()
    s.service.close()
    assert set(s.cluster.pods) == pods and not s.cluster.deleted


def test_term_checks_continue_during_an_outage_of_the_store_until_the_master_or_its_term_ends(
    stage: Make, tmp_path: Path
):
    s = stage()
    found: list[str] = []
    waited: list[float] = []
    watch = term_watch.TermWatch(s.request, lambda: (1, "holder"), lambda: found.append("superseded"))
    store = Path(s.request.store)

    def wait(seconds: float) -> bool:
        """Plays what happens between two looks."""
        waited.append(seconds)
        if len(waited) == 2:
            store.rename(tmp_path / "elsewhere")
            store.write_text("no folder")
        elif len(waited) == 3:
            store.unlink()
            (tmp_path / "elsewhere").rename(store)
            rival(s)
        return len(waited) == 5

    take_term(
        s.request.store, s.job_name, s.request.job_id, holder="holder", address="127.0.0.1:8", base=lambda: ""
    )  # fmt: skip
    watch.look_regularly(wait)
    assert waited == [term_watch.PERIOD_SECONDS] * 3 and found == ["superseded"]
    assert "has taken term 2" in watch.superseded
    watch.look_regularly(wait)
    assert len(waited) == 3
    other = term_watch.TermWatch(s.request, lambda: (2, "rival"), lambda: found.append("never"))
    other.look_regularly(wait)
    assert len(waited) == 5 and found == ["superseded"]


def test_pruning_looks_for_a_higher_term_before_each_deletion(stage: Make):
    s = stage(rows=100_000)
    s.start()
    for shards in (5, 10, 15):
        trained(s, shards)
        saved(s)
    looks: list[int] = []

    def check() -> None:
        looks.append(len(looks))
        if len(looks) == 2:
            raise SupersededError("another master has taken term 2")

    before = committed(s)
    with pytest.raises(SupersededError):
        catalog.prune(s.request.store, s.job_name, s.request.job_id, keep=1, check=check)
    assert len(committed(s)) == 2 and committed(s)[0] == before[0]


def test_terms_of_an_ended_run_are_not_continued(stage: Make):
    s = stage()
    s.start()
    s.wait_for(Phase.SUCCEEDED)
    s.stop()
    again = stage("another")
    again.request = msgspec.structs.replace(again.request, earlier_terms=1)
    again.start()
    state = again.service.state
    assert state.phases.term == 2 and not state.recovery.records and state.training.samples == 0


def test_a_master_killed_between_taking_and_journalling_its_term_begins_the_job_in_that_term(stage: Make):
    s = stage()
    service = JobService(s.request, s.cluster, s.folder, token="secret")
    take_term(
        s.request.store, s.job_name, s.request.job_id,
        holder=service.state.plan.holder, address="127.0.0.1:7", base=lambda: "",
    )  # fmt: skip
    service.journal.close()
    again = JobService(s.request, s.cluster, s.folder, token="secret")
    assert not again.is_continued
    again.start("127.0.0.1:7")
    assert again.state.phases.term == 1 and len(again.state.membership.members) == 4
    again.close()
