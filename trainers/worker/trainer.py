"""Trainer: the interface that computes a worker's minibatches and accesses the model's parameters.

The worker (`work`, `loop`, `feed`, `session`) handles leases, directives and acknowledgements, and uses only this
interface for training. So another way to train, such as torchrec on GPUs whose workers step together, is another
Trainer with the same shards, saves and orders. This module must not depend on types of a trainer or on torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from elastrec.platform.data.metrics.heads import Predicted
from elastrec.platform.specs.errors import TransportError
from elastrec.platform.transport.messages.directive import Directive
from elastrec.trainers.worker.feed import Item

FloatArray = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Started:
    """A started minibatch; trainers use a subclass with the data that they need to finish it."""

    item: Item


class Prediction(NamedTuple):
    """The predictions of each head for a minibatch, with labels, and pooled rows `[B, sum of R]`."""

    heads: tuple[Predicted, ...]
    pooled_BX: FloatArray

    @property
    def prediction_BH(self) -> FloatArray:
        """Predictions of all heads, float32 [B, H]."""
        return np.stack([head.prediction_B for head in self.heads], axis=1)


class Trainer(Protocol):
    """Used by one thread. A minibatch goes through `start`, then `train` or `predict`, in the order of the feed.

    TransportError from any method means that started minibatches, and perhaps others, are lost: the worker calls
    `drop`, and starts the lost ones again under the newest directive. In a new generation it calls `reset` and leases
    shards again, because the model was rolled back.
    """

    @property
    def trained(self) -> int:
        """Number of minibatches with rows that `train` has processed since this trainer was created, including lost
        ones."""
        ...

    @property
    def applied(self) -> int:
        """The number of the first minibatches of `trained` that are in the parameters, or are lost.

        Raises:
            TransportError: call `drop`.
        """
        ...

    @property
    def pooled_names(self) -> list[str]:
        """Features of a prediction's pooled rows, in their order."""
        ...

    def keeps(self, directive: Directive) -> bool:
        """Whether started minibatches can be finished under a directive; otherwise `drop` is called before `follow`."""
        ...

    def follow(self, directive: Directive) -> None:
        """Connects to the parameters as in the directive; fast if nothing has changed.

        Raises:
            TransportError: they cannot be reached.
        """
        ...

    def redirected(self, error: TransportError) -> bool:
        """Whether an error contains the new location of the parameters, so that `follow` with the same directive
        reaches them."""
        ...

    def overlaps(self, directive: Directive) -> bool:
        """Whether the next minibatch is started before this one is trained."""
        ...

    def mode(self, *, training: bool) -> None:
        """Minibatches that are started from here on are for training, or for predictions."""
        ...

    def start(self, item: Item) -> Started:
        """Begins with a minibatch, without waiting."""
        ...

    def is_awaited(self) -> bool:
        """Whether others wait for one more minibatch of this worker, after those that it has pushed.

        A synchronous job shares out each step. Raises as `next_rows`.
        """
        ...

    def next_rows(self, batch_size: int) -> int:
        """Rows that the next minibatch for training is to have, at most `batch_size`; 0: none yet, ask again.

        In a synchronous job it waits for the others.

        Raises:
            TransportError: call `drop`.
        """
        ...

    def train(self, started: Started, *, hold: bool, leaves: bool = False, rate_scale: float = 1.0) -> None:
        """Takes one step; its gradients are on their way, or with `hold` leave with the next `start`.

        Args:
            rate_scale: a factor of the learning rates.
            leaves: this worker has no other minibatch for now, so no server waits for one.

        Raises:
            JobFailedError: the model cannot be trained like this, such as a loss that is not finite.
        """
        ...

    def predict(self, started: Started) -> Prediction | None:
        """Predictions of the model as it is; None: the minibatch has no rows."""
        ...

    def release(self) -> None:
        """Sends gradients that are held for a `start` that does not come."""
        ...

    def rest(self, directive: Directive) -> None:
        """From now on no server waits for this worker, until it trains again.

        In a synchronous job gradients may wait until others complete the step, or rest as well: see `applied`.
        """
        ...

    def drop(self) -> int:
        """Forgets what was started. The first so many of `trained` are in the parameters or will be; others are lost.

        What is not lost stays so until `reset`.
        """
        ...

    def reset(self) -> None:
        """Forgets everything: what is not in the parameters is lost."""
        ...

    def close(self) -> None:
        """Ends threads and connections."""
        ...
