"""torchrec in one process: the network of a job file on torchrec's own tables, short trainings one after the other.

The rows, their order and their first values are those of `one_worker`. Tables are torchrec's EmbeddingBagCollection of
the sizes that the log needs, embeddings follow torchrec's RowWiseAdagrad, first-order weights torch's Adagrad (FTRL
without l1 and l2 is the same), dense parameters torch's Adam; no code of the product updates or stores a parameter.
Answers a line of JSON to a line of JSON (`train_and_score`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torchrec import EmbeddingBagCollection, KeyedJaggedTensor
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from benchmarks.common.child import serve
from benchmarks.processes.one_worker import SCORED_ROWS, items, most_scored, scored_days
from elastrec.platform.data.metrics.binary import BinaryMetricsSketch
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.optimizers import OptimizerKind
from elastrec.trainers.models import FeatureSchema, build_model, embedding_tables
from elastrec.trainers.parameter_server.hashing import initial_rows
from elastrec.trainers.parameter_server.plan import TablePlan, plan_of_job
from elastrec.trainers.worker.inputs import inputs_of


@dataclass(frozen=True)
class Minibatch:
    """Dense features `[B, I]`, sparse features with ids as the log has them, labels `[B]`."""

    dense_BI: Tensor
    sparse: KeyedJaggedTensor
    label_B: Tensor


class Vocabulary:
    """Row numbers of ids: torchrec's tables have a fixed size.

    Args:
        table_of: table of each feature.
        trained, scored: all minibatches whose ids are needed.
    """

    def __init__(self, table_of: dict[str, str], trained: Sequence[Minibatch], scored: Sequence[Minibatch]) -> None:
        self._table_of = table_of
        self.ids = {table: self._distinct([*trained, *scored], table) for table in set(table_of.values())}
        self._trained = {table: self._distinct(trained, table) for table in self.ids}

    def _distinct(self, minibatches: Sequence[Minibatch], table: str) -> NDArray[np.int64]:
        features = [feature for feature, of in self._table_of.items() if of == table]
        found = [batch.sparse[feature].values().numpy() for batch in minibatches for feature in features]
        return np.unique(np.concatenate(found))

    def never_trained(self, table: str) -> Tensor:
        """Numbers of the rows that no step has used."""
        return torch.from_numpy(np.flatnonzero(~np.isin(self.ids[table], self._trained[table])))

    def numbered(self, sparse: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """The same features with row numbers for ids."""
        values = [
            np.searchsorted(self.ids[self._table_of[key]], sparse[key].values().numpy())
            for key in sparse.keys()  # noqa: SIM118
        ]
        return KeyedJaggedTensor(
            keys=sparse.keys(), values=torch.from_numpy(np.concatenate(values)), lengths=sparse.lengths()
        )


def read(job: TrainingJob, day: int, batch_size: int, count: int | None, *, shuffled: bool) -> list[Minibatch]:
    """What `one_worker` trains on or scores."""
    found = []
    for item in items(job.spec, day, batch_size, count, shuffled=shuffled):
        inputs = inputs_of(item.batch)
        assert isinstance(inputs.sparse, KeyedJaggedTensor), "the peer has no deduplication"
        found.append(Minibatch(inputs.dense_BI, inputs.sparse, inputs.target_BT[:, 0]))
    return found


def tables_of(job: TrainingJob, plan: TablePlan, vocabulary: Vocabulary) -> EmbeddingBagCollection:
    """torchrec's tables, with the first values that rows have on parameter servers."""
    configs = embedding_tables(job)
    for config in configs:
        config.num_embeddings = len(vocabulary.ids[config.name])
    collection = EmbeddingBagCollection(tables=configs)
    with torch.no_grad():
        for config in configs:
            entry = plan.by_name[config.name]
            rows = initial_rows(
                vocabulary.ids[config.name], config.name, seed=job.spec.training.seed,
                initial_range=entry.column_ranges, dimension=config.embedding_dim,
            )  # fmt: skip
            collection.embedding_bags[config.name].weight.copy_(torch.from_numpy(rows))
    return collection


class Segments:
    """Optimisers of first-order weights and embeddings, the columns of torchrec's tables.

    Raises:
        AssertionError: the job's rules are not those of this peer.
    """

    def __init__(self, job: TrainingJob, tables: Sequence[nn.Parameter]) -> None:
        rows, weights = job.spec.optimizers.rows, job.spec.first_order_rule
        assert rows.kind is OptimizerKind.ADAGRAD
        self._tables, first = tables, job.spec.model.first_order_columns
        self._parts: list[tuple[nn.Parameter, slice, nn.Parameter]] = []
        self._optimizers: list[torch.optim.Optimizer] = []
        embeddings = self._columns(slice(first, None))
        self._optimizers.append(RowWiseAdagrad(embeddings, lr=rows.learning_rate, eps=rows.epsilon))
        if weights is not None:
            assert (weights.kind, weights.l1, weights.l2) == (OptimizerKind.FTRL, 0, 0)
            assert not weights.initial_accumulator
            self._optimizers.append(
                torch.optim.Adagrad(self._columns(slice(first)), lr=weights.learning_rate, eps=weights.beta)
            )

    def _columns(self, columns: slice) -> list[nn.Parameter]:
        """Parameters that share memory with columns of the tables."""
        made = []
        for table in self._tables:
            part = nn.Parameter(torch.empty(0))
            part.data = table.data[:, columns]
            made.append(part)
            self._parts.append((table, columns, part))
        return made

    def zero_grad(self) -> None:
        for table in self._tables:
            table.grad = None

    def step(self) -> None:
        for table, columns, part in self._parts:
            assert table.grad is not None
            part.grad = table.grad[:, columns]
        for optimizer in self._optimizers:
            optimizer.step()


def logits_of(model: nn.Module, batch: Minibatch) -> torch.Tensor:
    """[B]; models for several labels answer [B, 1] where the job has one."""
    logits: torch.Tensor = model(batch.dense_BI, batch.sparse)
    return logits.reshape(batch.label_B.shape)


def train(job: TrainingJob, model: nn.Module, collection: nn.Module, minibatches: Iterator[Minibatch]) -> None:
    """A step per minibatch, with the rules of the job file."""
    rules = job.spec.optimizers
    rows = list(collection.parameters())
    of_rows = {id(each) for each in rows}
    dense = [each for each in model.parameters() if id(each) not in of_rows]
    optimizers = [
        Segments(job, rows),
        torch.optim.Adam(
            dense, lr=rules.dense.learning_rate, betas=(rules.dense.beta1, rules.dense.beta2), eps=rules.dense.epsilon
        ),
    ]
    loss_of = nn.BCEWithLogitsLoss()
    model.train()
    for batch in minibatches:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(logits_of(model, batch), batch.label_B).backward()
        for optimizer in optimizers:
            optimizer.step()


def train_and_score(request: dict[str, Any]) -> dict[str, Any]:
    """As `one_worker.train_and_score`; `overlap_after` is of no account, as every step sees the one before it."""
    job = TrainingJob.model_validate(request["content"])
    spec = job.spec
    trained = read(job, 0, spec.training.batch_size, request.get("steps"), shuffled=True)
    scored = [read(job, day, SCORED_ROWS, most_scored(request), shuffled=False) for day in scored_days(spec, request)]
    plan = plan_of_job(spec)
    table_of = {feature: table.name for table in embedding_tables(job) for feature in table.feature_names}
    vocabulary = Vocabulary(table_of, trained, [batch for day in scored for batch in day])
    collection = tables_of(job, plan, vocabulary)
    model = build_model(spec.model, collection, FeatureSchema.from_job(job), seed=spec.training.seed)
    train(job, model, collection, (numbered(batch, vocabulary) for batch in trained))
    # An exported model answers zero for an id that it has not seen, and so do servers.
    with torch.no_grad():
        for table, bag in collection.embedding_bags.items():
            bag.weight[vocabulary.never_trained(table)] = 0.0
    model.eval()
    sketches = []
    for day in scored:
        sketch = BinaryMetricsSketch()
        with torch.no_grad():
            for batch in (numbered(each, vocabulary) for each in day):
                sketch.update(torch.sigmoid(logits_of(model, batch)).numpy(), batch.label_B.numpy())
        sketches.append(sketch)
    return {
        "steps": len(trained),
        "rows": sum(len(batch.label_B) for batch in trained),
        "auc": [sketch.auc() for sketch in sketches],
        "normalized_entropy": [sketch.normalized_entropy() for sketch in sketches],
    }


def numbered(batch: Minibatch, vocabulary: Vocabulary) -> Minibatch:
    """With row numbers for ids."""
    return Minibatch(batch.dense_BI, vocabulary.numbered(batch.sparse), batch.label_B)


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(train_and_score, {})
