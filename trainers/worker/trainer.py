"""Trainer: what computes a worker's minibatches and reaches the model's parameters.

The worker (`work`, `loop`, `feed`, `session`) knows leases, directives and acknowledgements, and of training no more
than stands here. So another way to train, such as torchrec on GPUs whose workers step together, is another Trainer
behind the same shards, saves and orders. Here never enter torch, or a trainer's own types.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from elastrec.platform.data.metrics.heads import Predicted
from elastrec.platform.specs.errors import TransportError
from elastrec.platform.transport.messages.job import Directive
from elastrec.trainers.worker.feed import Item

FloatArray = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Started:
    """A minibatch that a trainer has begun with; trainers keep in a subclass what they need to finish it."""

    item: Item


class Prediction(NamedTuple):
    """What each head of the model predicts for a minibatch, with labels, and pooled rows `[B, sum of R]`."""

    heads: tuple[Predicted, ...]
    pooled_BX: FloatArray

    @property
    def prediction_BH(self) -> FloatArray:
        """Predictions of all heads, float32 [B, H]."""
        return np.stack([head.prediction_B for head in self.heads], axis=1)


class Trainer(Protocol):
    """Used by one thread. A minibatch goes through `start`, then `train` or `predict`, in the order of the feed.

    TransportError from any method means that minibatches that were started are lost, and perhaps others: the worker
    calls `drop`, and starts those again that are lost, under the newest directive. In a new generation it calls `reset`
    and gets other shards: the model went back.
    """

    @property
    def trained(self) -> int:
        """Minibatches with rows that went through `train` since this trainer was made, lost ones included."""
        ...

    @property
    def applied(self) -> int:
        """The first so many of `trained` are in the parameters, or are lost.

        Raises:
            TransportError: call `drop`.
        """
        ...

    @property
    def pooled_names(self) -> list[str]:
        """Features of a prediction's pooled rows, in their order."""
        ...

    def keeps(self, directive: Directive) -> bool:
        """Whether what was started can be finished under a directive; else `drop` comes before `follow`."""
        ...

    def follow(self, directive: Directive) -> None:
        """Reaches the parameters as the directive says; cheap when nothing changed.

        Raises:
            TransportError: they cannot be reached.
        """
        ...

    def redirected(self, error: TransportError) -> bool:
        """Whether a failure says where the parameters are now: `follow` with the same directive reaches them."""
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
