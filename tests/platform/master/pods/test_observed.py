"""The effects of watch events, snapshots and answers to creations."""

from __future__ import annotations

import msgspec

from elastrec.platform.clusters.pods import EndReason, PodEvent, PodEventKind, PodPhase, PodSize, PodStatus, ResizeState
from elastrec.platform.master.pods.observed import Observed
from elastrec.platform.specs.metrics import Role


def pod(uid: str, name: str = "w-0") -> PodStatus:
    return PodStatus(name=name, uid=uid, job="j", role=Role.WORKER, phase=PodPhase.RUNNING, size=PodSize(1.0, 1))


def snapshot(observed: Observed, *uids: str, token: str = "t") -> None:
    for uid in uids:
        observed.take(PodEvent(PodEventKind.SEEN, pod(uid)))
    observed.take(PodEvent(PodEventKind.SYNCED, resume=token))


def synced(*uids: str) -> Observed:
    observed = Observed()
    observed.begin_watch()
    snapshot(observed, *uids)
    return observed


def test_a_pod_that_is_not_in_a_snapshot_has_vanished() -> None:
    observed = synced("a", "b")
    observed.begin_watch()
    snapshot(observed, "b")
    assert observed.pods.keys() == {"b"} and observed.gone.keys() == {"a"}


def test_an_incomplete_snapshot_does_not_remove_pods() -> None:
    observed = synced("a", "b")
    observed.begin_watch()
    observed.take(PodEvent(PodEventKind.SEEN, pod("b")))
    observed.begin_watch()  # the cluster went away
    assert observed.pods.keys() == {"a", "b"}
    snapshot(observed, "a")
    assert observed.pods.keys() == {"a"}


def test_a_pod_whose_creation_was_answered_during_a_snapshot_is_judged_by_the_next_one() -> None:
    observed = Observed()
    observed.begin_watch()
    observed.take(PodEvent(PodEventKind.SEEN, pod("a")))
    observed.created(pod("b"))
    observed.take(PodEvent(PodEventKind.SYNCED, resume="t"))
    assert observed.pods.keys() == {"a", "b"} and observed.resume == "t"
    observed.begin_watch()
    assert observed.resume == "t"
    # A whole watch has not reported it: whether it is there is asked for.
    observed.begin_watch()
    assert observed.resume == ""
    snapshot(observed, "a")
    assert observed.pods.keys() == {"a"}


def test_a_pod_that_the_watch_reported_needs_no_other_snapshot() -> None:
    observed = synced()
    observed.created(pod("a"))
    observed.take(PodEvent(PodEventKind.ADDED, pod("a"), "u"))
    for _ in range(3):
        observed.begin_watch()
    assert observed.resume == "u"


def test_an_answer_does_not_override_a_later_event_of_the_watch() -> None:
    observed = synced()
    ended = msgspec.structs.replace(pod("a"), phase=PodPhase.FAILED, end=EndReason.ERROR)
    observed.take(PodEvent(PodEventKind.MODIFIED, ended))
    observed.created(pod("a"))
    assert observed.pods["a"].end is EndReason.ERROR
    observed.take(PodEvent(PodEventKind.DELETED, ended))
    observed.created(pod("a"))
    assert not observed.pods


def test_reports_of_the_watch_are_newer_than_the_answer_to_a_change() -> None:
    observed = synced("a")
    before = observed.pods["a"]
    resized = msgspec.structs.replace(before, size=PodSize(2.0, 1000))
    observed.take(PodEvent(PodEventKind.MODIFIED, resized))
    observed.changed(before, resize=ResizeState.IN_PROGRESS)
    assert observed.pods["a"] == resized
    observed.changed(resized, is_ending=True)
    assert observed.pods["a"].is_ending


def test_a_late_report_about_a_deleted_pod_does_not_restore_it() -> None:
    observed = synced("a")
    observed.take(PodEvent(PodEventKind.DELETED, pod("a")))
    observed.take(PodEvent(PodEventKind.MODIFIED, pod("a")))
    assert not observed.pods
