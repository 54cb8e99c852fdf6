"""One training or evaluation step: a pulled minibatch becomes gradients, or predictions.

Uses torch and the parameter client; independent of the order of shards, directives and heartbeats.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from elastrec.platform.specs.errors import JobFailedError
from elastrec.platform.specs.job import TrainingJob
from elastrec.trainers.deduplication import DeduplicatedBags, DeduplicatedFeatures
from elastrec.trainers.embedding.client import ParameterClient, Pulled
from elastrec.trainers.embedding.dense import FlatParameters
from elastrec.trainers.embedding.module import RemoteEmbeddingBagCollection
from elastrec.trainers.models import FeatureSchema, JobHeads, Losses, build_model, embedding_tables, takes_deduplicated
from elastrec.trainers.parameter_server.messages import Origin
from elastrec.trainers.parameter_server.plan import plan_of_job
from elastrec.trainers.worker.feed import Item
from elastrec.trainers.worker.gradients import GradientGuard
from elastrec.trainers.worker.identity import Identity
from elastrec.trainers.worker.inputs import Inputs, inputs_of
from elastrec.trainers.worker.traffic import read_bytes
from elastrec.trainers.worker.trainer import FloatArray, Prediction, Started
from elastrec.trainers.worker.window import Window

# If a server is not reachable for this time, the step is dropped; a longer wait would delay newer directives.
_PATIENCE_SECONDS = 2.0


@dataclass(frozen=True)
class InFlight(Started):
    """A minibatch that is being pulled; without rows (if all were bad), nothing was pulled."""

    inputs: Inputs | None
    pulled: Pulled | None


class Step:
    """The job's model over parameter servers.

    Args:
        window: takes the step's times, bytes, loss and predictions.

    Raises:
        SpecError: the model or its options are wrong.
        Exception: whatever the constructor of a user's model raises.
    """

    def __init__(self, job: TrainingJob, identity: Identity, window: Window) -> None:
        spec = job.spec
        plan, tables = plan_of_job(spec), embedding_tables(job)
        self._window = window
        self._list_features = frozenset(feature.name for feature in spec.data.sparse if feature.is_list)
        self._bfloat16 = spec.model.precision == "bfloat16"
        self.client = ParameterClient(
            plan,
            worker=identity.pod,
            incarnation=identity.incarnation,
            token=identity.token,
            tls=identity.tls,
            patience_seconds=_PATIENCE_SECONDS,
        )
        self.collection = RemoteEmbeddingBagCollection(tables, self.client, spec.sequence_features)
        self._bags: RemoteEmbeddingBagCollection | DeduplicatedBags = self.collection
        if not spec.deduplication.is_off:
            self._bags = DeduplicatedBags(self.collection)
        self._expands = not takes_deduplicated(spec.model.architecture)
        self.model = build_model(spec.model, self._bags, FeatureSchema.from_job(job), seed=spec.training.seed)
        self.heads = JobHeads(self.model, spec.data)
        self.flat = FlatParameters(self.model)
        self.initial_dense = self.flat.values.copy()
        self.client.layout = self.flat.layout
        self._guard = GradientGuard(spec.optimizers, plan, self.flat.layout)
        self._pooled: FloatArray | None = None
        self._bags.register_forward_hook(self._keep_pooled)
        self._dense_is_current = False

    @property
    def feature_names(self) -> list[str]:
        """Features of the pooled rows, in the order of the collection's output."""
        return self.collection.pooled_names

    def mode(self, *, training: bool) -> None:
        """Sets the model to train or evaluate; the next pull fetches the dense parameters again."""
        self.model.train(training)
        self._dense_is_current = False

    def pull(self, item: Item) -> InFlight:
        """Starts the pull of a minibatch.

        Raises:
            TransportError: the routing is out of date.
        """
        if not item.batch.num_rows:
            self.client.release()
            return InFlight(item, None, None)
        inputs = inputs_of(item.batch, item.ids)
        dense = self.model.training or not self._dense_is_current
        self._dense_is_current = True
        return InFlight(item, inputs, self._bags.prefetch(inputs.sparse, dense=dense))

    def train(
        self,
        started: InFlight,
        origin: Origin,
        closed: Sequence[tuple[str, int, int]] = (),
        *,
        hold: bool,
        leaves: bool = False,
        rate_scale: float = 1.0,
    ) -> None:
        """Forward, backward, push; the push has been started when this returns, or is held for the next pull.

        Args:
            origin, closed, leaves, rate_scale: see messages.Push.

        Raises:
            TransportError: rows were lost; the step does not count.
            JobFailedError: the loss or a gradient is not finite, or the model returned something unexpected.
        """
        if started.inputs is None or started.pulled is None:
            return
        clock = time.perf_counter
        began = clock()
        self._load(started.pulled)
        pulled = clock()
        self.flat.zero_gradients()
        with torch.autocast("cpu", torch.bfloat16, enabled=self._bfloat16):
            outputs = self._forward(started.inputs)
        targets = self.heads.targets(started.inputs.target_BT)
        losses = self.heads.losses(outputs, targets)
        loss_value = sum(float(loss.detach()) for loss in losses.trained)
        if not np.isfinite(loss_value):
            raise _not_finite(losses, loss_value, started.item)
        for number, loss in enumerate(losses.trained, start=1):
            loss.backward(retain_graph=number < len(losses.trained))
        computed = clock()
        left = self.collection.take_row_gradients()
        self._bags.discard(started.pulled)
        samples = started.item.batch.num_rows
        rows, dense = self._guard.rows(left), self._guard.dense(self.flat.gradients)
        sent = self.client.push(
            left.pulled, rows, dense, samples, origin, closed=closed, hold=hold, leaves=leaves, rate_scale=rate_scale
        )
        pushed = clock()
        read, plain = read_bytes(started.inputs, self._list_features)
        named = losses.by_name if len(losses.by_name) > 1 else {}
        self._window.add(
            losses={name: float(loss.detach()) * samples for name, loss in named.items()},
            predicted=self.heads.predicted(outputs, targets),
            samples=samples, steps=1, loss_sum=loss_value * samples,
            pull_seconds=pulled - began, compute_seconds=computed - pulled, push_seconds=pushed - computed,
            bytes_pulled=started.pulled.bytes, bytes_pushed=sent,
            bytes_read=read, bytes_read_plain=plain,
        )  # fmt: skip

    def predict(self, started: InFlight) -> Prediction:
        """Predicts in float32 for every precision of the job.

        Raises:
            TransportError: the rows were lost.
        """
        assert started.inputs is not None and started.pulled is not None, "a minibatch without rows has no predictions"
        with torch.no_grad():
            self._load(started.pulled)
            outputs = self._forward(started.inputs)
        self._bags.discard(started.pulled)
        assert self._pooled is not None
        predicted = self.heads.predicted(outputs, self.heads.targets(started.inputs.target_BT))
        return Prediction(predicted, self._pooled)

    def drop(self) -> None:
        """Discards started minibatches; gradients are kept (see ParameterClient.drop)."""
        self.client.drop()
        self._bags.forget()
        self._dense_is_current = False

    def _load(self, pulled: Pulled) -> None:
        pulled.dense(out=self.flat.values)
        pulled.rows()

    def _forward(self, inputs: Inputs) -> dict[str, Tensor]:
        sparse = inputs.sparse
        if self._expands and isinstance(sparse, DeduplicatedFeatures):
            # The collection recognises this form, and pools only the distinct rows.
            sparse = sparse.expanded
        result = self.model(dense_features=inputs.dense_BI, sparse_features=sparse)
        return self.heads.outputs(result, len(inputs.target_BT))

    def _keep_pooled(self, _module: nn.Module, _inputs: Any, output: Any) -> None:
        if not self.model.training:
            self._pooled = output.values().detach().numpy()


def _not_finite(losses: Losses, trained: float, item: Item) -> JobFailedError:
    parts = {name: float(loss.detach()) for name, loss in losses.by_name.items()}
    named = "" if len(parts) == 1 else f" (its parts: {', '.join(f'{name} {part}' for name, part in parts.items())})"
    return JobFailedError(
        f"the loss is {trained}{named} in {item.shard.split}, before row {item.progress.offset} of it in the order of "
        "training; lower spec.optimizers.*.learning_rate or check the model"
    )
