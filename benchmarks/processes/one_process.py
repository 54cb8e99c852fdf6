"""torchrec alone: one pass of a job file's model over its rows, in one process without servers; prints its AUC.

Rows come through the platform's reader, so that both sides see the same numbers; what trains is torchrec's
FusedEmbeddingBagCollection with its RowWiseAdagrad, and torch's Adam.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from torch import nn
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from elastrec.platform.data.batches import dense_of, ids_of, label_of
from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.partitions import existing_partitions
from elastrec.platform.data.reader import ShardReader
from elastrec.platform.data.sketch import BinaryMetricsSketch
from elastrec.platform.specs.job import JobSpec, TrainingJob
from elastrec.platform.specs.row_ranges import shard_order, shard_seed
from elastrec.trainers.models import FeatureSchema, build_model
from elastrec.trainers.parameter_server.plan import plan_of_job

_READ_ROWS, _SCORED_ROWS = 65_536, 8_192
Rows = tuple[Any, Any, Any]
"""ids int64 [F, N], dense float32 [N, I], labels float32 [N]."""


def read(spec: JobSpec, *, last: bool) -> Rows:
    """All rows of the last partition, or those of the others in the order in which a job's shards hold them.

    Scalar features only.
    """
    partitions = existing_partitions(spec.data)
    manifest = build_manifest(spec.data, partitions[-1:] if last else partitions[:-1])
    ids, dense, labels = [], [], []
    reader = ShardReader(spec.data, manifest)
    for batch in _batches(reader, spec, manifest.rows, shuffled=not last):
        found = ids_of(batch)
        assert found.scalar, "lists would need offsets, which no benchmark needs yet"
        ids.append(found.values.reshape(len(found.keys), -1))
        # Arrow may use its memory again.
        dense.append(dense_of(batch).copy())
        labels.append(label_of(batch).copy())
    reader.close()
    return np.concatenate(ids, 1), np.concatenate(dense), np.concatenate(labels)


def _batches(reader: ShardReader, spec: JobSpec, rows: int, *, shuffled: bool) -> Iterator[pa.RecordBatch]:
    if not shuffled:
        yield from reader.read(0, rows, seed=0, shuffle=False, batch_size=_READ_ROWS)
        return
    seed, size = spec.training.seed, spec.training.batch_size * spec.training.batches_per_shard
    for shard in shard_order(seed, 0, math.ceil(rows / size)).tolist():
        first = shard * size
        yield from reader.read(
            first, min(size, rows - first), seed=shard_seed(seed, 0, shard), shuffle=True, batch_size=_READ_ROWS
        )


def numbered(train: Rows, scored: Rows) -> tuple[Rows, Rows, list[int]]:
    """Rows with ids 0, 1, ... per feature, as tables of fixed size need them, and the tables' sizes."""
    both = np.concatenate([train[0], scored[0]], 1)
    sizes = []
    for feature in range(len(both)):
        both[feature], unique = pd.factorize(both[feature])
        sizes.append(len(unique))
    rows = train[0].shape[1]
    return (both[:, :rows], *train[1:]), (both[:, rows:], *scored[1:]), sizes


def inputs(rows: Rows, names: list[str], size: int) -> Iterator[tuple[torch.Tensor, KeyedJaggedTensor, torch.Tensor]]:
    """Minibatches of at most `size` rows."""
    ids, dense, labels = rows
    for first in range(0, len(labels), size):
        part = slice(first, first + size)
        values = np.ascontiguousarray(ids[:, part]).reshape(-1)
        sparse = KeyedJaggedTensor.from_lengths_sync(
            names, torch.from_numpy(values), torch.ones(len(values), dtype=torch.int32)
        )
        yield torch.from_numpy(dense[part]), sparse, torch.from_numpy(labels[part])


def train_and_score(spec: JobSpec) -> dict[str, Any]:
    """One pass; AUC on the last partition."""
    torch.manual_seed(spec.training.seed)
    torch.set_num_threads(1)
    names = [feature.name for feature in spec.data.sparse]
    train, scored, sizes = numbered(read(spec, last=False), read(spec, last=True))
    plan = plan_of_job(spec)
    collection = FusedEmbeddingBagCollection(
        [
            EmbeddingBagConfig(
                name=name, embedding_dim=spec.model.row_dimension, num_embeddings=size, feature_names=[name]
            )
            for name, size in zip(names, sizes, strict=True)
        ],
        optimizer_type=RowWiseAdagrad,
        optimizer_kwargs={"lr": spec.optimizers.rows.learning_rate},
        device=torch.device("cpu"),
    )
    # As rows start on our servers; torchrec's fused tables pass over their configs' init_fn.
    for name, table in zip(names, collection.state_dict().values(), strict=True):
        entry = plan.by_name[name]
        assert len(entry.segments) == 1, "fused tables have one rule for the whole row"
        table.uniform_(-entry.initial_range, entry.initial_range)
    schema = FeatureSchema(
        tuple(feature.name for feature in spec.data.dense), tuple(names), spec.model.embedding_dimension
    )
    model = build_model(spec.model, collection, schema, seed=spec.training.seed)
    dense = [value for name, value in model.named_parameters() if "embedding_bag" not in name]
    optimizer = torch.optim.Adam(dense, lr=spec.optimizers.dense.learning_rate, fused=True)
    loss_of = nn.BCEWithLogitsLoss()
    samples = 0
    for numbers, sparse, labels in inputs(train, names, spec.training.batch_size):
        optimizer.zero_grad()
        loss_of(model(numbers, sparse), labels).backward()
        optimizer.step()
        samples += len(labels)
    model.eval()
    sketch = BinaryMetricsSketch()
    with torch.no_grad():
        for numbers, sparse, labels in inputs(scored, names, _SCORED_ROWS):
            sketch.update(torch.sigmoid(model(numbers, sparse)).numpy(), labels.numpy())
    return {"auc": sketch.auc(), "samples_trained": samples}


if __name__ == "__main__":
    content = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps(train_and_score(TrainingJob.model_validate(content).spec)))
