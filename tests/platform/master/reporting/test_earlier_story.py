"""The story of a resumed job includes what earlier masters have left, also while the job runs."""

from __future__ import annotations

import threading
import time

import msgspec
import pytest

from elastrec.checkpoints import open_store
from elastrec.platform.master.reporting import earlier_story
from elastrec.platform.master.reporting.earlier_story import EarlierStory
from elastrec.platform.master.reporting.explanation import (
    as_text,
    explanation_key,
    read_explanation,
    timeline_entry,
    with_earlier,
)
from elastrec.platform.master.reporting.unsent_metrics import read_result
from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.transport.messages.ledger import Explanation, GetExplanation
from tests.platform.master.masters import Make, stage_fixture, stopped  # noqa: F401

pytestmark = pytest.mark.usefixtures("some_fleet")


def test_a_damaged_story_is_named_and_stops_neither_the_job_nor_its_result(stage: Make) -> None:
    s = stopped(stage)
    open_store(s.request.store).put(explanation_key(s.job_name, s.request.job_id), b"rubbish")
    second = stage("another")
    second.start()
    found: Explanation = second.call(GetExplanation(), Explanation)
    assert found.timeline[0].what.startswith("resumed from") and "it cannot be read" in found.earlier_problem
    assert f"... the events before the job was resumed, which cannot be read: {found.earlier_problem}" in as_text(found)
    second.wait_for(Phase.SUCCEEDED)
    second.stop()
    left = read_explanation(s.request.store, s.request.job_id)
    assert left is not None and left.phase == Phase.SUCCEEDED
    result = read_result(s.request.store, s.job_name, s.request.job_id, 0)
    assert result is not None and result.phase is Phase.SUCCEEDED


def test_a_story_waits_a_few_seconds_for_a_store_that_hangs(stage: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    s = stopped(stage)
    release = threading.Event()

    def hanging(*of: str) -> Explanation | None:
        release.wait(30)
        return read_explanation(*of)

    monkeypatch.setattr(earlier_story, "read_explanation", hanging)
    earlier = EarlierStory(s.request)
    began = time.monotonic()
    for _ in range(2):
        assert earlier.look(0.1) == (None, "the checkpoint store does not answer")
    assert time.monotonic() - began < 5.0
    release.set()
    story, problem = earlier.look(30.0)
    assert story is not None and story.timeline and problem == ""


def test_a_store_that_is_away_is_asked_again(stage: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    s = stopped(stage)

    def away(*of: str) -> Explanation | None:
        raise CheckpointError("the store is away")

    earlier = EarlierStory(s.request)
    with monkeypatch.context() as patch:
        patch.setattr(earlier_story, "read_explanation", away)
        assert earlier.look(30.0) == (None, "the store is away")
    story, problem = earlier.look(30.0)
    assert story is not None and problem == ""


def test_the_story_of_a_finished_run_of_the_same_job_is_not_that_of_this_run(stage: Make) -> None:
    s = stopped(stage)
    assert EarlierStory(s.request).read() is not None
    assert EarlierStory(msgspec.structs.replace(s.request, earlier_terms=1)).read() is None


def test_what_a_master_has_left_itself_does_not_count_twice() -> None:
    def story(*seconds: float, changes: int) -> Explanation:
        entries = [timeline_entry(at, 1e9 + at, "job_stopped", {"reason": f"{at:g}"}) for at in seconds]
        return Explanation(
            job="j", phase="Stopped", wall_seconds=9.0, parts={}, goodput=0.0, timeline=entries, shape_changes=changes
        )

    before, own = story(1.0, 2.0, changes=2), story(5.0, 6.0, changes=1)
    whole = with_earlier(own, before)
    assert [entry.seconds for entry in whole.timeline] == [1.0, 2.0, 5.0, 6.0] and whole.shape_changes == 3
    assert with_earlier(own, whole) == whole
