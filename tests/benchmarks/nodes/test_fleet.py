"""The watches of several agents act as one: its token continues all of them, or it restarts with a snapshot."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from benchmarks.common.nodes.cluster import NodesCluster
from benchmarks.common.nodes.fleet import NodesFleet
from elastrec.platform.clusters.local import messages
from elastrec.platform.clusters.pods import PodEvent, PodEventKind, PodPhase, PodSize, PodStatus
from elastrec.platform.clusters.protocol import snapshot
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.metrics import Role

Watch = Callable[[str, float], messages.PodEvents]


class ScriptedAgent:
    """Answers only watches, with the given answers.

    Attributes:
        asked: the received resume tokens.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.asked: list[str] = []

    def call(self, request: messages.WatchPods, answer: type[Any], timeout_seconds: float) -> messages.PodEvents:
        assert request.job == "job" and timeout_seconds > request.wait_seconds
        self.asked.append(request.resume)
        return self._watch(request.resume, request.wait_seconds)


def status(name: str) -> PodStatus:
    return PodStatus(
        name=name, uid=f"uid of {name}", job="job", role=Role.WORKER, phase=PodPhase.RUNNING, size=PodSize(1.0, 1)
    )


def seen(name: str, token: str) -> messages.PodEvents:
    events = [PodEvent(PodEventKind.SEEN, status(name)), PodEvent(PodEventKind.SYNCED, resume=token)]
    return messages.PodEvents(events=events, resume=token)


def news(name: str, token: str) -> messages.PodEvents:
    return messages.PodEvents(events=[PodEvent(PodEventKind.MODIFIED, status(name), token)], resume=token)


def quiet(token: str) -> messages.PodEvents:
    return messages.PodEvents(events=[], resume=token)


def fleet(**agents: ScriptedAgent) -> NodesFleet:
    return NodesFleet(NodesCluster(agents), "job")  # type: ignore[arg-type]


def story(events: list[PodEvent]) -> list[tuple[str, str]]:
    return [(str(event.kind), event.pod.name if event.pod else "") for event in events]


def test_a_snapshot_has_the_pods_of_all_nodes_and_one_end_with_a_token_for_all() -> None:
    a = ScriptedAgent(lambda resume, seconds: quiet(resume) if resume else seen("pod-a", "a:1"))
    b = ScriptedAgent(lambda resume, seconds: quiet(resume) if resume else seen("pod-b", "b:1"))
    events = list(fleet(a=a, b=b).watch("", 0.0))
    assert story(events) == [("SEEN", "pod-a"), ("SEEN", "pod-b"), ("SYNCED", "")]
    assert msgspec.json.decode(events[-1].resume) == {"a": "a:1", "b": "b:1"}
    assert [pod.name for pod in snapshot(fleet(a=a, b=b))] == ["pod-a", "pod-b"]


def test_a_watch_continues_in_all_agents_and_every_event_has_a_token_for_all() -> None:
    a = ScriptedAgent(lambda resume, seconds: news("pod-a", "a:2") if resume == "a:1" else quiet(resume))
    b = ScriptedAgent(lambda resume, seconds: quiet("b:9"))
    (event,) = fleet(a=a, b=b).watch('{"a": "a:1", "b": "b:1"}', 0.05)
    assert story([event]) == [("MODIFIED", "pod-a")]
    assert msgspec.json.decode(event.resume)["a"] == "a:2"
    assert a.asked[:2] == ["a:1", "a:2"] and b.asked[0] == "b:1"


@pytest.mark.parametrize("token", ["0123456789abcdef.1", '{"a": "a:1"}', '["a"]'])
def test_a_token_of_other_nodes_gives_a_snapshot(token: str) -> None:
    a = ScriptedAgent(lambda resume, seconds: quiet(resume) if resume else seen("pod-a", "a:1"))
    b = ScriptedAgent(lambda resume, seconds: quiet(resume) if resume else seen("pod-b", "b:1"))
    assert story(list(fleet(a=a, b=b).watch(token, 0.0)))[-1] == ("SYNCED", "")


def test_where_one_agent_has_forgotten_its_token_nothing_that_is_older_follows_the_snapshot() -> None:
    forgot = threading.Event()

    def of_a(resume: str, seconds: float) -> messages.PodEvents:
        if resume == "a:lost":
            forgot.set()
            return seen("pod-a", "a:7")
        return quiet(resume) if resume else seen("pod-a", "a:8")

    def of_b(resume: str, seconds: float) -> messages.PodEvents:
        if resume == "b:1":
            # Asked before the snapshot, answered after it was found necessary.
            assert forgot.wait(10.0)
            return news("pod-b", "b:2")
        return quiet(resume) if resume else seen("pod-b", "b:3")

    b = ScriptedAgent(of_b)
    events = list(fleet(a=ScriptedAgent(of_a), b=b).watch('{"a": "a:lost", "b": "b:1"}', 0.05))
    at = story(events).index(("SEEN", "pod-a"))
    assert story(events)[at:] == [("SEEN", "pod-a"), ("SEEN", "pod-b"), ("SYNCED", "")]
    assert msgspec.json.decode(events[-1].resume) == {"a": "a:8", "b": "b:3"}
    assert "b:2" not in b.asked[b.asked.index("") :]


def test_a_watch_fails_as_the_agent_does_that_does_not_answer() -> None:
    def away(resume: str, seconds: float) -> messages.PodEvents:
        raise ClusterError("local cluster is away", retryable=True)

    a = ScriptedAgent(lambda resume, seconds: quiet(resume))
    with pytest.raises(ClusterError, match="away") as failed:
        list(fleet(a=a, b=ScriptedAgent(away)).watch('{"a": "a:1", "b": "b:1"}', 1.0))
    assert failed.value.retryable
