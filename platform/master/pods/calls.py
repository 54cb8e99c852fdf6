"""The calls of pods to a master: registration, heartbeats, leases, and reports of their own failure."""

from __future__ import annotations

import abc

import msgspec

from elastrec.platform.master.machine import events
from elastrec.platform.master.machine.effects import AnswerLease, Effect
from elastrec.platform.master.machine.leasing import answer_unchanged
from elastrec.platform.master.service.answers import Answers, Unknown, check_kind, check_progress
from elastrec.platform.master.service.parts import ServicePart
from elastrec.platform.transport.messages.job import (
    Done,
    Failed,
    Heartbeat,
    Leased,
    LeaseShards,
    LeaseState,
    Register,
    Registered,
)

MAXIMUM_LEASE = 1024
_WAIT_SECONDS = 0.2


class PodCalls(ServicePart):
    """The calls of pods.

    Attributes:
        _zero: the clock's time at the zero of the job's clock.
        _unix_zero: Unix time at the zero of the clock, read once: if the node's clock is set later, servers that
            register then do not disagree with the others.
    """

    _zero: float
    _unix_zero: float
    _job_json: bytes
    _answers: Answers

    @abc.abstractmethod
    def _apply(self, event: events.Event) -> tuple[list[Effect], int]:
        """Changes the state and appends the event to the journal; returns its effects and its sequence number."""

    @abc.abstractmethod
    def _finish_event(self, effects: list[Effect], sequence: int) -> list[Effect]:
        """Waits until the journal is on disk up to the sequence number, then starts the effects."""

    @abc.abstractmethod
    def _wait(self, sequence: int) -> None:
        """Waits until the journal is on disk up to the sequence number."""

    def register(self, message: Register) -> Registered:
        """A pod's process has started."""
        self.submit(
            lambda now: events.PodRegistered(
                time=now,
                pod=message.pod,
                role=message.role,
                incarnation=message.incarnation,
                address=message.address,
                node=message.node,
                restored_order_id=message.restored_order_id,
                started_cores=message.started_cores,
            )
        )
        with self._lock:
            member = self.state.membership.members.get(message.pod)
            if member is None or not member.is_held_by_another(message.incarnation):
                self._heartbeats.record(message.pod, self._clock())
                self._seen.registered(message.pod, self.state, self.now())
            directive = self.state.directive(message.pod, message.incarnation)
            orders = self.state.orders_of(message.pod, message.incarnation)
            pace = self._pace_of(message.pod)
            sequence = self.journal.last
        self._wait(sequence)
        return Registered(
            job_json=self._job_json,
            rank=member.index if member else -1,
            streams=self.request.streams,
            directive=directive,
            heartbeat_seconds=pace,
            orders=orders,
            wall_seconds=self._unix_zero + self._clock(),
        )

    def heartbeat(self, message: Heartbeat) -> msgspec.Struct:
        """Heartbeat; only what changes the state is journalled."""
        if message.progress:
            check_progress(message.progress)
        effects: list[Effect] | None = None
        with self._lock:
            member = self.state.membership.members.get(message.pod)
            if member is not None and not member.incarnation:
                return Unknown()
            if member is not None and member.incarnation == message.incarnation:
                clock = self._clock()
                now = clock - self._zero
                self._heartbeats.record(message.pod, clock)
                self._seen.heartbeat(message, self.state, now)
                problem = message.restore_problem
                report = events.PodReported(
                    time=now,
                    pod=message.pod,
                    incarnation=message.incarnation,
                    generation=message.generation,
                    reached_version=message.reached_version,
                    progress=message.progress,
                    frozen_order_id=message.frozen_order_id,
                    in_memory_order_id=message.in_memory_order_id,
                    saved=message.saved,
                    restored_order_id=message.restored_order_id,
                    damaged=problem if problem is not None and problem.is_damaged else None,
                    writing=message.writing,
                    transfers=message.transfers,
                    orders_version=message.orders_version,
                    let_go_version=message.let_go_version,
                    copied_order_id=message.copied_order_id,
                    taken_order_id=message.taken_order_id,
                    copying=message.copying,
                    ends_in_seconds=message.ends_in_seconds,
                )
                if self.state.changes_state(report):
                    effects, _ = self._apply(report)
            pace = self._pace_of(message.pod)
            answer = self._answers.of(message.pod, message.incarnation, self.state, pace)
            # The directive may depend on an event of another caller that is not on disk yet.
            sequence = self.journal.last
        if effects is not None:
            self._finish_event(effects, sequence)
        elif self.journal.committed < sequence:
            self._wait(sequence)
        return answer

    def _pace_of(self, pod: str) -> float:
        state = self.state
        return self._heartbeats.pace(pod, len(state.membership.members), state.seconds_to_pause(self.now()))

    def lease(self, message: LeaseShards) -> Leased:
        """Hands shards out, and takes progress reports."""
        check_progress(message.progress)
        check_kind("kind", message.kind)
        with self._lock:
            request = events.ShardsAsked(
                time=self.now(),
                pod=message.pod,
                incarnation=message.incarnation,
                generation=message.generation,
                request_id=message.request_id,
                count=min(message.count, MAXIMUM_LEASE),
                kind=message.kind,
                progress=message.progress,
            )
            answer = answer_unchanged(self.state, request)
            effects: list[Effect] = []
            if answer is None:
                effects, _ = self._apply(request)
                answer = next(effect for effect in effects if isinstance(effect, AnswerLease))
            granted = answer.state is LeaseState.GRANTED
            directive = None if granted else self.state.directive(message.pod, message.incarnation)
            given = self.state.orders_of(message.pod, message.incarnation)
            sequence = self.journal.last
        self._finish_event(effects, sequence)
        wait = _WAIT_SECONDS if answer.state is LeaseState.WAIT else 0.0
        return Leased(state=answer.state, shards=answer.shards, wait_seconds=wait, directive=directive, orders=given)

    def failed(self, message: Failed) -> Done:
        """A pod is about to exit because of an error."""
        self.submit(
            lambda now: events.PodFailed(
                time=now,
                pod=message.pod,
                incarnation=message.incarnation,
                retryable=message.retryable,
                reason=message.reason,
                traceback=message.traceback,
                shard=message.shard,
            )
        )
        return Done()
