"""Worker: the pieces that the loop moves: session, feed, step, and what is waiting to be acknowledged."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import structlog

from elastrec.platform.data.source import Minibatch, Source, open_source
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.transport.export_messages import predictions_folder
from elastrec.platform.transport.job_messages import (
    Directive,
    Leased,
    Mode,
    Registered,
    RoutingTable,
    Shard,
    ShardProgress,
)
from elastrec.trainers.worker.evaluating import ShardEvaluation
from elastrec.trainers.worker.feed import Feed, Item
from elastrec.trainers.worker.session import Session
from elastrec.trainers.worker.step import InFlight, Step

log = structlog.get_logger(__name__)

OVERLAP_AFTER_STEPS = 500
"""With `overlap_pull: auto`, pulls overlap once the model has taken this many steps.

An overlapped step uses rows and dense parameters that lack the gradients of the step before it, which costs accuracy
while the model changes fast: `python -m benchmarks.short_jobs`. A worker counts the steps that the model had taken when
it connected, and its own.
"""

_KIND = {Mode.TRAIN: "train", Mode.EVALUATE: "evaluate"}


class Worker:
    """One worker of one job; used by one thread.

    Args:
        session: registered with the master.
        registered: the master's answer.

    Raises:
        SpecError: the job file or the model is wrong.
        Exception: whatever the constructor of a user's model raises.
    """

    def __init__(self, session: Session, registered: Registered) -> None:
        self.session = session
        self.job = TrainingJob.model_validate_json(registered.job_json)
        self.step = Step(self.job, session.identity, session.window)
        self.generation = registered.directive.generation
        self._streams = registered.streams
        self._predictions_uri = predictions_folder(
            self.job.spec.checkpoint.store, self.job.metadata.name, session.identity.job_id
        )
        self._sources: dict[str, Source] = {}
        self._feed: Feed | None = None
        self._kind = ""
        self._routing: RoutingTable | None = None
        self._pushes = 0
        # Steps of the model that are not among the pushes of this worker since it connected.
        self._steps_before = 0
        self._unacknowledged: deque[tuple[int, ShardProgress]] = deque()
        self._evaluation: ShardEvaluation | None = None
        self._takes_part = False

    # Following the directive

    def follow(self, directive: Directive) -> Feed:
        """Connects to the directive's servers and gives the feed of its shards; cheap when nothing changed.

        Raises:
            TransportError: the servers cannot be reached under this directive.
        """
        kind = _KIND[directive.mode]
        self.step.client.follow(directive.version)
        if directive.generation != self.generation:
            self.abandon()
        if kind != self._kind:
            self._forget_feed()
        if directive.generation != self.generation or directive.routing != self._routing:
            self.drop()
            self._connect(directive)
        self.generation, self._kind = directive.generation, kind
        self.step.mode(training=kind == "train")
        if self._feed is None:
            self._feed = self._new_feed(kind, directive.generation)
        return self._feed

    def _connect(self, directive: Directive) -> None:
        self.step.client.connect(directive.routing, directive.generation)
        self._steps_before = self.step.client.init_dense(self.step.initial_dense) - self._pushes
        self._routing = directive.routing

    def overlaps(self, directive: Directive) -> bool:
        """Whether the pull of the next minibatch goes out before this one's push.

        Never with bsp: a pull of the next round must see this round's gradients.
        """
        training = self.job.spec.training
        if directive.mode is Mode.EVALUATE:
            return True
        if training.consistency.mode == "bsp":
            return False
        if training.overlap_pull == "auto":
            return self._steps_before + self._pushes >= OVERLAP_AFTER_STEPS
        return training.overlap_pull

    # One minibatch

    def pull(self, item: Item) -> InFlight:
        """Starts a minibatch."""
        self._takes_part |= self._kind == "train"
        return self.step.pull(item)

    def finish(self, started: InFlight, *, hold: bool = False) -> None:
        """Trains or evaluates a minibatch whose pull was started, and acknowledges what was applied meanwhile.

        Args:
            hold: its push travels with the next pull, which must follow at once (else `release`).
        """
        if self._kind == "train":
            self.step.train(started, hold=hold)
            self._pushes += started.pulled is not None
            self._unacknowledged.append((self._pushes, started.item.progress))
            self._acknowledge(self._applied())
        else:
            self._evaluate(started)

    def release(self) -> None:
        """Sends a push that was held for the next pull: there is none yet."""
        self.step.client.release()

    def _evaluate(self, started: InFlight) -> None:
        item = started.item
        shard = item.shard
        if self._evaluation is None or self._evaluation.shard != shard:
            self._evaluation = ShardEvaluation(shard, self._predictions_uri, self.step.feature_names)
        if started.inputs is not None:
            prediction_B, pooled_BFR = self.step.predict(started)
            self._evaluation.add(item.batch, prediction_B, started.inputs.label_B.numpy(), pooled_BFR)
        if item.progress.ended:
            completion, self._evaluation = self._evaluation.completion(item.progress), None
            self._report(completion)

    # Settling

    def rest(self, directive: Directive) -> bool:
        """Lets nobody wait for this worker, and acknowledges what is applied.

        Returns:
            Whether everything is. In bsp pushes may wait for others to fill the global batch, or to rest as well, which
            makes the servers step with what there is: call it again.

        Raises:
            TransportError: a push was lost.
        """
        if self._takes_part:
            if self._routing is None:
                self._connect(directive)  # servers count it in until it has left
            self.step.client.leave()
            self._acknowledge(self._applied())
            self._takes_part = bool(self._unacknowledged)
        self.session.report_now()
        return not self._takes_part

    def drop(self) -> None:
        """Forgets everything in flight; the feed begins again at the last acknowledged rows."""
        self.step.drop()
        self._unacknowledged.clear()
        self._evaluation = None
        self._routing = None
        if self._feed is not None:
            self._feed.rewind()

    def abandon(self) -> None:
        """`drop`, and lets go of the shards: another generation gives new ones, and its servers know no workers yet."""
        self._forget_feed()
        self.drop()
        self._takes_part = False

    def close(self) -> None:
        """Ends threads and connections."""
        self._forget_feed()
        self.step.client.close()
        for source in self._sources.values():
            source.close()

    def _applied(self) -> int:
        # The client counts its pushes from its first; so does this worker, dropped ones included.
        return self.step.client.pushes_applied

    def _acknowledge(self, applied: int) -> None:
        while self._unacknowledged and self._unacknowledged[0][0] <= applied:
            _, progress = self._unacknowledged.popleft()
            self._report(progress)

    def _report(self, progress: ShardProgress) -> None:
        self.session.report(self.generation, progress)
        if self._feed is not None:
            self._feed.acknowledge(progress)

    # Feed

    def _forget_feed(self) -> None:
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    def _new_feed(self, kind: str, generation: int) -> Feed:
        def lease(count: int, cancelled: Callable[[], bool]) -> Leased | None:
            return self.session.lease(generation, kind, count, cancelled)

        return Feed(lease, self._read)

    def _read(self, shard: Shard) -> Iterator[Minibatch]:
        # Opened on the feed's thread: manifests may be large, and a source belongs to one thread at a time.
        stream = shard.split.stream
        if stream not in self._sources:
            self._sources[stream] = open_source(self._streams[stream], self.job.spec)
        return self._sources[stream].read(shard.split, shard.offset, shard.position)
