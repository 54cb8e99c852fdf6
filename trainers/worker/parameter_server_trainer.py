"""The trainer of jobs with parameter servers: pulls rows, computes steps of the model, and pushes gradients."""

from __future__ import annotations

from elastrec.platform.specs.errors import TransportError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.transport.messages.directive import Directive, Mode, RoutingTable
from elastrec.trainers.embedding.lane import RoutingChangedError
from elastrec.trainers.parameter_server.messages import Origin
from elastrec.trainers.worker.feed import Item
from elastrec.trainers.worker.identity import Identity
from elastrec.trainers.worker.step import InFlight, Step
from elastrec.trainers.worker.trainer import Prediction, Started
from elastrec.trainers.worker.window import Window

OVERLAP_AFTER_STEPS = 500
"""With `overlap_pull: auto`, pulls of a worker that trains alone overlap once the model has taken this many steps.

An overlapped step uses rows and dense parameters that lack the gradients of the step before it, which costs accuracy
while the model changes fast: `python -m benchmarks short_jobs`. A trainer counts the steps that the model had taken
when it connected, and its own.
"""


class Origins:
    """The origins of a worker's pushes, from the minibatches in the order in which they are trained.

    Attributes:
        closed: splits that have ended without another push since the last one; see messages.Push.
    """

    def __init__(self) -> None:
        self._ends: dict[tuple[str, int], tuple[int, int]] = {}  # attempt, and the end of its last push
        self.closed: list[tuple[str, int, int]] = []

    def of(self, item: Item) -> Origin:
        """The origin of the push of a minibatch."""
        progress = item.progress
        attempt, begin = self._ends.get((progress.stream, progress.number), (0, 0))
        is_first = attempt != progress.attempt
        return Origin(
            stream=progress.stream,
            number=progress.number,
            attempt=progress.attempt,
            begin=item.shard.offset if is_first else begin,
            end=progress.offset,
            is_first=is_first,
            is_last=progress.ended,
        )

    def pushed(self, item: Item) -> None:
        """The minibatch was pushed."""
        progress, self.closed = item.progress, []
        split = progress.stream, progress.number
        self._ends[split] = progress.attempt, progress.offset
        if progress.ended:
            del self._ends[split]

    def without_push(self, item: Item) -> None:
        """The minibatch has no rows."""
        progress = item.progress
        split = progress.stream, progress.number
        if progress.ended and split in self._ends:
            _, end = self._ends.pop(split)
            self.closed = [*self.closed, (*split, end)]


class ParameterServerTrainer:
    """See `Trainer`.

    Args:
        window: takes times, bytes, loss and predictions.

    Raises:
        SpecError: the model or its options are wrong.
        Exception: whatever the constructor of a user's model raises.
    """

    def __init__(self, job: TrainingJob, identity: Identity, window: Window) -> None:
        self.step = Step(job, identity, window)
        self._training = job.spec.training
        self._generation = 0
        self._routing: RoutingTable | None = None
        # Routing from a server, and its generation; directives may contain it later.
        self._named_routing: tuple[int, RoutingTable] | None = None
        # Generation and servers that have the dense parameters.
        self._initialised: tuple[int, list[str]] | None = None
        self._pushes = 0
        self._origins = Origins()
        # Steps of the model before this trainer connected.
        self._steps_before = 0

    @property
    def trained(self) -> int:
        return self._pushes

    @property
    def applied(self) -> int:
        # The client counts its pushes from its first; so does this trainer, lost ones included.
        return self.step.client.pushes_applied

    @property
    def pooled_names(self) -> list[str]:
        return self.step.feature_names

    def keeps(self, directive: Directive) -> bool:
        return self._newest_routing(directive) == self._routing and directive.generation == self._generation

    def follow(self, directive: Directive) -> None:
        self.step.client.follow(directive.version)
        if not self.keeps(directive):
            self._connect(directive)

    def _connect(self, directive: Directive) -> None:
        routing = self._newest_routing(directive)
        self.step.client.connect(routing, directive.generation)
        owners = directive.generation, routing.servers
        if self._initialised != owners:
            self._steps_before = self.step.client.init_dense(self.step.initial_dense) - self._pushes
            self._initialised = owners
        self._routing, self._generation = routing, directive.generation

    def redirected(self, error: TransportError) -> bool:
        if not isinstance(error, RoutingChangedError) or error.routing is None:
            return False
        self._named_routing = error.generation, error.routing
        return True

    def _newest_routing(self, directive: Directive) -> RoutingTable:
        """The directive's routing, or a newer one of its generation from a server."""
        if self._named_routing is not None:
            generation, routing = self._named_routing
            if generation == directive.generation and routing.epoch > directive.routing.epoch:
                return routing
        return directive.routing

    def overlaps(self, directive: Directive) -> bool:
        """Whether the next minibatch is pulled before this one is pushed.

        Never with bsp: a pull of the next round must see this round's gradients. With `auto` a worker among others
        does not: with n workers a step already lacks the gradients of n - 1 others, with pulls that overlap of 2 n - 1.
        """
        if directive.mode is Mode.EVALUATE:
            return True
        if self._training.consistency.mode == "bsp":
            return False
        if self._training.overlap_pull == "auto":
            return directive.trains_alone and self._steps_before + self._pushes >= OVERLAP_AFTER_STEPS
        return self._training.overlap_pull

    def mode(self, *, training: bool) -> None:
        self.step.mode(training=training)

    def start(self, item: Item) -> Started:
        return self.step.pull(item)

    def is_awaited(self) -> bool:
        client = self.step.client
        if self._training.consistency.mode != "bsp" or self._routing is None:
            return False
        if client.share is None:
            client.flush()  # the answer to the last push may have one
        return client.share is not None

    def next_rows(self, batch_size: int) -> int:
        if self._training.consistency.mode != "bsp":
            return batch_size
        share = self.step.client.next_share(batch_size)
        return 0 if share is None else share.rows

    def train(self, started: Started, *, hold: bool, leaves: bool = False, rate_scale: float = 1.0) -> None:
        assert isinstance(started, InFlight)
        item = started.item
        if started.pulled is None:
            self._origins.without_push(item)
            return
        origin, closed = self._origins.of(item), self._origins.closed
        self.step.train(started, origin, closed, hold=hold, leaves=leaves, rate_scale=rate_scale)
        self._origins.pushed(item)
        self._pushes += 1

    def predict(self, started: Started) -> Prediction | None:
        assert isinstance(started, InFlight)
        return None if started.inputs is None else self.step.predict(started)

    def release(self) -> None:
        self.step.client.release()

    def rest(self, directive: Directive) -> None:
        if self._routing is None:
            self._connect(directive)  # servers count it in until it has left
        self.step.client.leave()

    def drop(self) -> int:
        self.step.drop()
        self._routing = None
        return self._pushes  # the client keeps them

    def reset(self) -> None:
        self.drop()
        self.step.client.forget()
        self._origins = Origins()

    def close(self) -> None:
        self.step.client.close()
