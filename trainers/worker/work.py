"""Worker: the state of the loop: session, feed, trainer, and progress that must be acknowledged."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator

import structlog

from elastrec.checkpoints import StoreError, predictions_folder
from elastrec.platform.data.reading.batches import Minibatch
from elastrec.platform.data.reading.source import Source, open_source
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.transport.messages.directive import Directive, Mode, PodOrders
from elastrec.platform.transport.messages.job import Leased, Registered, Shard, ShardProgress
from elastrec.trainers.threads import threads_for
from elastrec.trainers.worker.evaluating import ShardEvaluation
from elastrec.trainers.worker.feed import Feed, Finished, Item, Waiting
from elastrec.trainers.worker.session import Session
from elastrec.trainers.worker.trainer import Started, Trainer

log = structlog.get_logger(__name__)

_SHARE_SECONDS = 1.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 5.0
"""Pause between two attempts to write predictions while the store is away."""
_KIND = {Mode.TRAIN: "train", Mode.EVALUATE: "evaluate"}


class Worker:
    """One worker of one job; used by one thread.

    Args:
        session: registered with the master.
        job: from the master's answer.
        registered: the master's answer.
        set_threads: sets the number of threads of a step; called in the computing thread.
    """

    def __init__(
        self,
        session: Session,
        job: TrainingJob,
        registered: Registered,
        trainer: Trainer,
        set_threads: Callable[[int], None],
    ) -> None:
        self.session = session
        self.trainer = trainer
        self.job = job
        self.generation = registered.directive.generation
        self._streams = registered.streams
        self._predictions_uri = predictions_folder(
            self.job.spec.checkpoint.store, self.job.metadata.name, session.identity.job_id
        )
        self._sources: dict[str, Source] = {}
        self._feed: Feed | None = None
        self._kind = ""
        self._started: deque[Item] = deque()
        self._unacknowledged: deque[tuple[int, Item]] = deque()  # the number of minibatches trained with this one
        self._evaluation: ShardEvaluation | None = None
        self._takes_part = False
        self._set_threads = set_threads
        self._cores: float | None = None

    # Following the directive

    def follow(self, directive: Directive) -> Feed:
        """Follows the directive and returns the feed of its shards; fast if nothing has changed.

        Raises:
            TransportError: the parameters cannot be reached under this directive.
        """
        kind = _KIND[directive.mode]
        if directive.generation != self.generation:
            self.abandon()
        if kind != self._kind:
            self._forget_feed()
        if not self.trainer.keeps(directive):
            self.drop()
        self.trainer.follow(directive)
        self.generation, self._kind = directive.generation, kind
        self.trainer.mode(training=kind == "train")
        if self._feed is None:
            self._feed = self._new_feed(kind, directive.generation)
        return self._feed

    # One minibatch

    @property
    def batch_size(self) -> int:
        """Maximum rows of a training minibatch: from this pod's orders, otherwise from the job file."""
        orders = self.session.orders
        return (orders and orders.batch_size) or self.job.spec.training.batch_size

    @property
    def _rate_scale(self) -> float:
        orders = self.session.orders
        return 1.0 if orders is None else orders.learning_rate_scale

    def next(self, timeout_seconds: float) -> Item | Waiting | Finished | None:
        """The next minibatch with its present size; see Feed.next.

        None also if other workers of a synchronous job have taken all rows of the step.

        Raises:
            FeedError: a shard could not be read.
            TransportError: the parameters cannot be reached.
        """
        assert self._feed is not None, "follow first"
        if self._kind != "train":
            return self._feed.next(timeout_seconds)  # the window has only times of training
        clock, window = time.perf_counter, self.session.window
        began = clock()
        entry = self._feed.peek(timeout_seconds)
        window.add(wait_seconds=clock() - began)
        if entry is None:
            return None
        if isinstance(entry, Item):
            began, self._takes_part = clock(), True
            rows = self.trainer.next_rows(self.batch_size)
            window.add(pull_seconds=clock() - began)
            if not rows:
                return None
            self._feed.resize(rows)
        began = clock()
        entry = self._feed.next(timeout_seconds)
        window.add(wait_seconds=clock() - began)
        return entry

    def start(self, item: Item) -> Started:
        """Starts a minibatch. Started minibatches are finished in their order."""
        self._use_cores()
        self._takes_part |= self._kind == "train"
        self._started.append(item)
        return self.trainer.start(item)

    def _use_cores(self) -> None:
        cores = self.session.orders and self.session.orders.cores
        if cores and cores != self._cores:
            self._cores, threads = cores, threads_for(cores)
            self._set_threads(threads)
            log.info("threads", cores=cores, threads=threads)

    def finish(self, started: Started, *, hold: bool = False, leaves: bool = False) -> None:
        """Trains or evaluates a started minibatch, and acknowledges progress that was applied meanwhile.

        Args:
            hold: whether its gradients are sent with the next `start`, which must follow immediately (otherwise call
                `Trainer.release`).
            leaves: whether no other minibatch follows for now.
        """
        if self._kind == "train":
            leaves = leaves or (self.trainer.is_awaited() and self._is_last())
            self.trainer.train(started, hold=hold, leaves=leaves, rate_scale=self._rate_scale)
            self._unacknowledged.append((self.trainer.trained, started.item))
            self._started.popleft()
            self._acknowledge(self.trainer.applied)
        else:
            self._evaluate(started)
            self._started.popleft()

    def _is_last(self) -> bool:
        """Whether no minibatch can follow immediately."""
        return self._feed is None or isinstance(self._feed.peek(0.0), Waiting | Finished)

    def _evaluate(self, started: Started) -> None:
        item = started.item
        shard = item.shard
        if self._evaluation is None or self._evaluation.shard != shard:
            self._evaluation = ShardEvaluation(shard, self._predictions_uri, self.trainer.pooled_names)
        prediction = self.trainer.predict(started)
        if prediction is not None:
            self._evaluation.add(item.batch, prediction)
        if item.progress.ended:
            evaluation, self._evaluation = self._evaluation, None
            self._complete(evaluation, item.progress)

    def _complete(self, evaluation: ShardEvaluation, last: ShardProgress) -> None:
        """Reports a shard as done when its predictions are written; not if meanwhile there is other work.

        While the store is away, it tries again: the job is trained, and would fail after some lost workers.

        Raises:
            CheckpointError: the store refused, or was away for half a lease.
        """
        directive, pause = self.session.directive, _FIRST_PAUSE_SECONDS
        deadline = time.monotonic() + self.job.spec.faults.lease / 2
        while True:
            try:
                self.session.report(self.generation, evaluation.completion(last))
                return
            except StoreError as error:
                log.warning("predictions_not_written", reason=str(error), next_try_seconds=pause)
                if time.monotonic() + pause > deadline:
                    raise
            directive = self.session.wait_for_change(directive, pause)
            if (directive.mode, directive.generation) != (Mode.EVALUATE, self.generation):
                return
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    # Settling

    def rest(self, directive: Directive) -> bool:
        """Leaves the rounds of all servers, and acknowledges what they have applied.

        Returns:
            Whether everything is acknowledged. In bsp, gradients may wait until others fill the global batch, or pause
            as well, so that the servers apply an incomplete step; then call it again.

        Raises:
            TransportError: gradients were lost.
        """
        self.session.window.forget_waits()  # without shards, or in a pause
        if self._takes_part:
            self._train_share()
            self.trainer.rest(directive)
            self._acknowledge(self.trainer.applied)
            self._takes_part = bool(self._unacknowledged)
        self.session.report_now()
        return not self._takes_part

    def _train_share(self) -> None:
        """Trains this worker's share of a step, if there are rows; otherwise, that step would be smaller."""
        if self._feed is None or self._kind != "train" or not self.trainer.is_awaited():
            return
        if isinstance(item := self.next(_SHARE_SECONDS), Item):
            self.finish(self.start(item), leaves=True)

    def drop(self) -> None:
        """Discards started minibatches, and those that the trainer has lost; the feed returns them again."""
        kept = self.trainer.drop()
        lost = [item for number, item in self._unacknowledged if number > kept]
        for _ in lost:
            self._unacknowledged.pop()
        if self._feed is not None:
            self._feed.give_back([*lost, *self._started])
        self._started.clear()

    def abandon(self) -> None:
        """Discards everything and releases the shards, because a new generation leases shards again.

        Its servers do not know any workers yet.
        """
        self._forget_feed()
        self.trainer.reset()
        self._unacknowledged.clear()
        self._started.clear()
        self._takes_part = False

    def let_go(self, orders: PodOrders) -> None:
        """Releases all shards, as ordered; everything was acknowledged by `rest`."""
        self._forget_feed()
        self.session.let_go(orders)

    def close(self) -> None:
        """Ends threads and connections."""
        self._forget_feed()
        self.trainer.close()
        for source in self._sources.values():
            source.close()

    def _acknowledge(self, applied: int) -> None:
        while self._unacknowledged and self._unacknowledged[0][0] <= applied:
            _, item = self._unacknowledged.popleft()
            self.session.report(self.generation, item.progress)

    # Feed

    def _forget_feed(self) -> None:
        self._evaluation = None
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    def _new_feed(self, kind: str, generation: int) -> Feed:
        def lease(count: int, cancelled: Callable[[], bool]) -> Leased | None:
            return self.session.lease(generation, kind, count, cancelled)

        return Feed(lease, self._read, self.job.spec.training.batch_size)

    def _read(self, shard: Shard, place: ShardProgress, batch_size: int) -> Iterator[Minibatch]:
        # Opened in the feed's thread, because manifests may be large, and a source belongs to one thread at a time.
        stream = shard.split.stream
        if stream not in self._sources:
            self._sources[stream] = open_source(self._streams[stream], self.job.spec)
        return self._sources[stream].read(shard.split, place.offset, place.position, batch_size)
