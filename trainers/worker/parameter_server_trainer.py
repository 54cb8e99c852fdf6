"""The trainer of jobs with parameter servers: steps of the model on rows that are pulled, gradients that are pushed."""

from __future__ import annotations

from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.transport.job_messages import Directive, Mode, RoutingTable
from elastrec.trainers.worker.feed import Item
from elastrec.trainers.worker.identity import Identity
from elastrec.trainers.worker.step import InFlight, Step
from elastrec.trainers.worker.trainer import Prediction, Started
from elastrec.trainers.worker.window import Window

OVERLAP_AFTER_STEPS = 500
"""With `overlap_pull: auto`, pulls overlap once the model has taken this many steps.

An overlapped step uses rows and dense parameters that lack the gradients of the step before it, which costs accuracy
while the model changes fast: `python -m benchmarks.short_jobs`. A trainer counts the steps that the model had taken
when it connected, and its own.
"""


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
        self._pushes = 0
        # Steps of the model that are not among the pushes of this trainer since it connected.
        self._steps_before = 0

    @property
    def trained(self) -> int:
        return self._pushes

    @property
    def applied(self) -> int:
        # The client counts its pushes from its first; so does this trainer, dropped ones included.
        return self.step.client.pushes_applied

    @property
    def pooled_names(self) -> list[str]:
        return self.step.feature_names

    def keeps(self, directive: Directive) -> bool:
        return directive.routing == self._routing and directive.generation == self._generation

    def follow(self, directive: Directive) -> None:
        self.step.client.follow(directive.version)
        if not self.keeps(directive):
            self._connect(directive)

    def _connect(self, directive: Directive) -> None:
        self.step.client.connect(directive.routing, directive.generation)
        self._steps_before = self.step.client.init_dense(self.step.initial_dense) - self._pushes
        self._routing, self._generation = directive.routing, directive.generation

    def overlaps(self, mode: Mode) -> bool:
        """Whether the pull of the next minibatch goes out before this one's push.

        Never with bsp: a pull of the next round must see this round's gradients.
        """
        if mode is Mode.EVALUATE:
            return True
        if self._training.consistency.mode == "bsp":
            return False
        if self._training.overlap_pull == "auto":
            return self._steps_before + self._pushes >= OVERLAP_AFTER_STEPS
        return self._training.overlap_pull

    def mode(self, *, training: bool) -> None:
        self.step.mode(training=training)

    def start(self, item: Item) -> Started:
        return self.step.pull(item)

    def train(self, started: Started, *, hold: bool) -> None:
        assert isinstance(started, InFlight)
        self.step.train(started, hold=hold)
        self._pushes += started.pulled is not None

    def predict(self, started: Started) -> Prediction | None:
        assert isinstance(started, InFlight)
        return None if started.inputs is None else self.step.predict(started)

    def release(self) -> None:
        self.step.client.release()

    def rest(self, directive: Directive) -> None:
        if self._routing is None:
            self._connect(directive)  # servers count it in until it has left
        self.step.client.leave()

    def drop(self) -> None:
        self.step.drop()
        self._routing = None

    def close(self) -> None:
        self.step.client.close()
