"""The time of a resumed job: that of its earlier masters counts, as far as they have left it."""

from __future__ import annotations

import msgspec
import pytest

from elastrec.checkpoints import open_record, open_store
from elastrec.platform.history import metric_names as names
from elastrec.platform.jobs.watching.story import story_of
from elastrec.platform.master.measuring.time_profile import REDOING, TRAINING
from elastrec.platform.master.reporting.explanation import as_text, explanation_key, read_explanation
from elastrec.platform.master.service import earlier_times
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.transport.messages.ledger import Explanation, GetExplanation
from tests.platform.master.masters import Make, saved, stage_fixture, stop_job, stopped, trained  # noqa: F401
from tests.platform.master.stage import Stage

pytestmark = pytest.mark.usefixtures("some_fleet")


def explained(s: Stage) -> Explanation:
    found: Explanation = s.call(GetExplanation(), Explanation)
    assert sum(found.parts.values()) == pytest.approx(found.wall_seconds, rel=1e-6)
    return found


def test_the_time_of_a_stopped_job_counts_after_it_was_resumed_and_training_after_the_record_is_lost(
    stage: Make,
) -> None:
    s = stage()
    s.start()
    trained(s, 20)
    uri = saved(s)
    trained(s, 60)
    stop_job(s)
    before = explained(s)
    s.stop()
    times = msgspec.json.decode(open_record(uri).manifest.attributes[earlier_times.ATTRIBUTE], type=dict[str, float])
    assert 0 < times[TRAINING] < before.parts[TRAINING]
    second = stage("another")
    second.start()
    begun = explained(second)
    assert begun.earlier_seconds == pytest.approx(before.wall_seconds)
    assert begun.parts[TRAINING] >= times[TRAINING]
    lost = before.parts[TRAINING] - times[TRAINING]
    assert begun.parts[REDOING] >= before.parts[REDOING] + lost > 0
    second.wait_for(Phase.SUCCEEDED)
    live = explained(second)
    assert live.wall_seconds > before.wall_seconds and live.earlier_seconds == begun.earlier_seconds
    assert (
        second.service.totals()["job/goodput"]
        == live.goodput
        == pytest.approx(live.parts[TRAINING] / live.wall_seconds)
    )
    totals, metrics = second.service.totals(), second.service.metrics()
    assert metrics.elapsed_seconds < totals[names.SECONDS] == pytest.approx(live.wall_seconds)
    assert totals[names.MEAN_SAMPLES_PER_SECOND] == pytest.approx(metrics.samples_trained / live.wall_seconds)
    assert f"{before.wall_seconds:.1f} s of this were before the job was resumed" in as_text(live)
    second.stop()
    left = read_explanation(second.request.store, second.request.job_id)
    assert left is not None and (left.parts, left.earlier_seconds) == (live.parts, live.earlier_seconds)


def test_of_a_master_that_was_killed_the_time_until_its_last_record_counts(stage: Make) -> None:
    """Also if it had continued the job of a master that had ended by itself, whose explanation is older."""
    s = stopped(stage)
    first = read_explanation(s.request.store, s.request.job_id)
    assert first is not None
    killed = stage("another")
    killed.start()
    trained(killed, 60)
    uri = saved(killed)
    times = msgspec.json.decode(open_record(uri).manifest.attributes[earlier_times.ATTRIBUTE], type=dict[str, float])
    assert sum(times.values()) > first.wall_seconds
    killed.stop()
    last = stage("last")
    last.start()
    assert explained(last).earlier_seconds == pytest.approx(sum(times.values()))
    assert explained(last).parts[TRAINING] >= times[TRAINING]


def test_a_job_that_is_resumed_from_a_record_of_an_earlier_version_says_that_the_time_before_is_unknown(
    stage: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = stage()
    s.start()
    trained(s, 5)
    with monkeypatch.context() as patch:
        patch.setattr(earlier_times, "attribute", lambda times: {})
        saved(s)
    s.stop()
    second = stage("another")
    second.start()
    found = explained(second)
    assert found.earlier_seconds is None
    assert "of the time since the job was resumed; the time before is unknown" in as_text(found)
    assert story_of(found).coverage in as_text(found)
    # Samples of both masters over the seconds of the last one would be wrong, and its goodput is not that of the job.
    unknown = {names.SECONDS, names.MEAN_SAMPLES_PER_SECOND, names.GOODPUT}
    assert not [name for name in second.service.totals() if name in unknown or name.startswith("time/")]


def test_a_job_that_was_never_resumed_says_nothing_of_earlier_masters(stage: Make) -> None:
    s = stage()
    s.start()
    trained(s, 5)
    found = explained(s)
    assert found.earlier_seconds == 0.0 and "resumed" not in as_text(found)


def test_an_explanation_that_cannot_be_read_is_ignored(stage: Make) -> None:
    s = stage()
    open_store(s.request.store).put(explanation_key(s.job_name, s.request.job_id), b"rubbish")
    assert earlier_times.earlier_times(s.request, {TRAINING: 2.0}, has_ended=True) == {TRAINING: 2.0}
