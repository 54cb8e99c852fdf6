"""The pods of one job on several agents, whose watches are one watch.

Its resume token contains the token of every agent. Events of one pod are in order, because a pod stays on its node;
those of different nodes are in the order of arrival. If an agent no longer knows its token, the whole watch begins
again with a snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import msgspec

from benchmarks.common.nodes.cluster import NodesCluster
from elastrec.platform.clusters.local import messages
from elastrec.platform.clusters.local.client import CALL_SECONDS
from elastrec.platform.clusters.nodes import Node
from elastrec.platform.clusters.pods import PodEvent, PodEventKind, PodSize, PodSpec, PodStatus
from elastrec.platform.specs.errors import ClusterError

_POLL_SECONDS = 1.0
"""Time for which a request to an agent may still run after the caller has left a watch."""


class NodesFleet:
    """Implements `Fleet` for one job; safe to use from several threads."""

    def __init__(self, cluster: NodesCluster, job: str) -> None:
        self._cluster, self._job = cluster, job

    def create(self, pod: PodSpec) -> PodStatus:
        """See `Fleet.create`."""
        return self._cluster.create(pod)

    def delete(self, name: str, uid: str, *, grace_seconds: float | None = None) -> None:
        """See `Fleet.delete`. All agents get the request, also after one that does not answer."""
        problem: ClusterError | None = None
        for agent in self._cluster.agents.values():
            try:
                agent.fleet(self._job).delete(name, uid, grace_seconds=grace_seconds)
            except ClusterError as error:
                problem = problem or error
        if problem is not None:
            raise problem

    def resize(self, name: str, uid: str, size: PodSize) -> None:
        """See `Fleet.resize`. Done or refused at once, on the node that the pod has."""
        found = self._cluster.find(name)
        if found is None:
            raise ClusterError(f"pod {name} cannot be resized: there is no such pod; a pod must be pending or running")
        self._cluster.agents[found[0]].fleet(self._job).resize(name, uid, size)

    def watch(self, resume: str, timeout_seconds: float) -> Iterator[PodEvent]:
        """See `Fleet.watch`."""
        deadline = time.monotonic() + timeout_seconds
        tokens = self._tokens(resume)
        if not tokens:
            yield from self._snapshot(tokens)
        pool = ThreadPoolExecutor(len(self._cluster.agents), thread_name_prefix="nodes")
        try:
            yield from self._merged(pool, tokens, deadline)
        finally:
            # A caller that leaves does not wait for agents: their last answers are discarded.
            pool.shutdown(wait=False)

    def _merged(self, pool: ThreadPoolExecutor, tokens: dict[str, str], deadline: float) -> Iterator[PodEvent]:
        polls: dict[Future[messages.PodEvents], str] = {}
        while True:
            left = max(0.0, deadline - time.monotonic())
            for node in tokens.keys() - set(polls.values()):
                polls[pool.submit(self._poll, node, tokens[node], min(left, _POLL_SECONDS))] = node
            done, _ = wait(polls, return_when=FIRST_COMPLETED if left > 0.0 else ALL_COMPLETED)
            answers = [(polls.pop(poll), poll.result()) for poll in done]
            if any(event.kind is PodEventKind.SYNCED for _, answer in answers for event in answer.events):
                # Requests to other agents before the snapshot are older than it.
                wait(polls)
                polls.clear()
                yield from self._snapshot(tokens)
            else:
                for node, answer in answers:
                    yield from self._changes(tokens, node, answer)
            if left <= 0.0:
                return

    def _changes(self, tokens: dict[str, str], node: str, answer: messages.PodEvents) -> Iterator[PodEvent]:
        for event in answer.events:
            tokens[node] = event.resume
            yield msgspec.structs.replace(event, resume=_token(tokens))
        tokens[node] = answer.resume

    def _snapshot(self, tokens: dict[str, str]) -> Iterator[PodEvent]:
        for node in self._cluster.agents:
            answer = self._poll(node, "", 0.0)
            tokens[node] = answer.resume
            yield from (event for event in answer.events if event.kind is PodEventKind.SEEN)
        yield PodEvent(PodEventKind.SYNCED, resume=_token(tokens))

    def _poll(self, node: str, resume: str, seconds: float) -> messages.PodEvents:
        request = messages.WatchPods(job=self._job, resume=resume, wait_seconds=seconds)
        return self._cluster.agents[node].call(request, messages.PodEvents, seconds + CALL_SECONDS)

    def _tokens(self, resume: str) -> dict[str, str]:
        """By node; empty where the token is not of these nodes."""
        try:
            tokens = msgspec.json.decode(resume, type=dict[str, str])
        except msgspec.MsgspecError:
            return {}
        return tokens if tokens.keys() == self._cluster.agents.keys() else {}

    def nodes(self) -> list[Node]:
        """See `Fleet.nodes`."""
        return self._cluster.nodes()

    def logs(self, name: str, *, tail_lines: int | None = None) -> Iterator[str]:
        """See `Fleet.logs`."""
        return self._cluster.logs(name, tail_lines=tail_lines)


def _token(tokens: dict[str, str]) -> str:
    return msgspec.json.encode(tokens).decode()
