"""The gain of a training step that looks up and pools each distinct list once (RecD §5 and §6.2).

    python -m benchmarks dedup_training [--batch 2048] [--rounds 5] [--output json]

Both sides have the same module, ids and gradients, and pool as a job's worker does: one a plain KeyedJaggedTensor, the
other the DeduplicatedFeatures of the same batch. Rows are looked up in this process.

A pooling step consists of look-up, pooling, expansion, and their backward pass. The end-to-end figures are of a DLRM
with 26 single ids, 13 dense features and one history pooled by a transformer, with its loss, backward pass and the
optimiser of its dense parameters. Updates of rows are done by servers and equal for both sides. Figures are CPU seconds
of one thread, the best of three measurements of equal length, in alternating rounds.

Parity is compared after 200 steps: in float64, in float32, and, as a scale for float32, between the plain path and
itself with another order of rows in each batch.

What turns figures red: `lists_of` in `trainers/deduplication/lists.py` that repeats the rows of repeated lists before
they are pooled (attention, transformer, end to end); the same in `DeduplicatedBags.forward` (`sum`); `WORTH_ABOVE = 0`
in `platform/data/deduplicating/dedupe_factor.py` (`sum_unclustered`); `index_copy_` instead of `index_add_` in the
backward pass of `expand_rows` (`loss`, `weights`).
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from benchmarks.common.child import one_core
from benchmarks.common.figures import Figure, interleave, ratio, run_benchmark

if __name__ == "__main__" and "OMP_WAIT_POLICY" not in os.environ:
    # Threads, malloc and OpenMP must be set before torch is imported, the same for both sides.
    command = [sys.executable, "-m", "benchmarks.data.dedup_training", *sys.argv[1:]]
    os.execve(sys.executable, command, {**os.environ, **one_core()})

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from elastrec.platform.data.deduplicating.dedupe_factor import WORTH_ABOVE
from elastrec.platform.data.deduplicating.deduplication import deduplicate
from elastrec.trainers.deduplication import (
    AttentionPooling,
    DeduplicatedBags,
    DeduplicatedFeatures,
    InverseKeyedJaggedTensor,
    TransformerPooling,
    jagged_index_select,
    lists_of,
    pool_lists,
)
from elastrec.trainers.models.dlrm import PairwiseProducts

_DIMENSION, _LENGTH, _IDS = 32, 100, 10_000
_SINGLE, _DENSE = 26, 13
_PARITY_STEPS = 200
_TRIES = 3
Features: TypeAlias = KeyedJaggedTensor | DeduplicatedFeatures


@dataclass(frozen=True)
class Batch:
    """One minibatch in both forms.

    Attributes:
        factor: its DedupeFactor.
        chosen: the form chosen by the rule: deduplicated above a factor of 1.5.
    """

    plain: KeyedJaggedTensor
    deduplicated: DeduplicatedFeatures
    single_BF: Tensor
    dense_BI: Tensor
    label_B: Tensor

    @property
    def factor(self) -> float:
        return len(self.plain.values()) / len(_values_of(self.deduplicated))

    @property
    def chosen(self) -> Features:
        return self.deduplicated if self.factor > WORTH_ABOVE else self.plain


def make_batch(rows: int, repeats: int, seed: int) -> Batch:
    """Rows of sessions with `repeats` rows each, whose history never changes; lists of 50 to 100 ids."""
    rng = np.random.default_rng(seed)
    sessions = -(-rows // repeats)
    lengths_S = rng.integers(_LENGTH // 2, _LENGTH + 1, sessions)
    lists = [rng.integers(0, _IDS, length) for length in lengths_S]
    session_B = np.repeat(np.arange(sessions), repeats)[:rows]
    plain = KeyedJaggedTensor(
        keys=["history"],
        values=torch.from_numpy(np.concatenate([lists[s] for s in session_B])),
        lengths=torch.from_numpy(lengths_S[session_B].astype(np.int32)),
        stride=rows,
    )
    offsets = pa.array(plain.offsets().numpy().astype(np.int64))
    group = deduplicate({"history": pa.LargeListArray.from_arrays(offsets, pa.array(plain.values().numpy()))})
    return Batch(
        plain,
        DeduplicatedFeatures(None, (InverseKeyedJaggedTensor.from_numpy(group),)),
        torch.from_numpy(rng.integers(0, _IDS, (rows, _SINGLE))),
        torch.from_numpy(rng.standard_normal((rows, _DENSE), np.float32)),
        torch.from_numpy((rng.random(rows) < 0.3).astype(np.float32)),
    )


class Table(nn.Module):
    """An embedding collection of one table with what the one over parameter servers offers: sums of bags, and rows."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_IDS, _DIMENSION)

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        sums_BD = functional.embedding_bag(
            features.values(), self.embedding.weight, features.offsets(), mode="sum", include_last_offset=True
        )
        return KeyedTensor(["history"], [_DIMENSION], sums_BD)

    def rows(self, features: KeyedJaggedTensor, name: str) -> Tensor:
        return self.embedding(features[name].values())


class History(nn.Module):
    """The pooled history `[B, D]`: as the collection pools it, or by a module on its rows.

    Args:
        pooling: module that pools; None: the collection does.
    """

    def __init__(self, pooling: nn.Module | None) -> None:
        super().__init__()
        self.bags = DeduplicatedBags(Table())
        self.pooling = pooling

    def forward(self, features: Features) -> Tensor:
        if self.pooling is None:
            return self.bags(features)["history"]
        return pool_lists({"history": lists_of(self.bags, features, "history")}, {"history": self.pooling})


POOLINGS: dict[str, Callable[[], nn.Module | None]] = {
    "sum": lambda: None,
    "attention": lambda: AttentionPooling(_DIMENSION),
    "transformer": lambda: TransformerPooling(_DIMENSION, _LENGTH),
}


class Ranker(nn.Module):
    """DLRM's interaction over single ids, dense features and one pooled history."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(_IDS, _DIMENSION)
        self.history = History(POOLINGS["transformer"]())
        self.bottom = nn.Sequential(nn.Linear(_DENSE, 128), nn.ReLU(), nn.Linear(128, _DIMENSION), nn.ReLU())
        self.interaction = PairwiseProducts(_SINGLE + 1)
        pairs = (_SINGLE + 2) * (_SINGLE + 1) // 2
        self.top = nn.Sequential(nn.Linear(_DIMENSION + pairs, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(),
                                 nn.Linear(128, 1))  # fmt: skip

    def forward(self, batch: Batch, history: Features) -> Tensor:
        rows_BFD = torch.cat([self.rows(batch.single_BF), self.history(history).unsqueeze(1)], dim=1)
        return self.top(self.interaction(self.bottom(batch.dense_BI), rows_BFD)).squeeze(1)


def pooling_step(pooling: str, batch: Batch, features: Features) -> Callable[[], None]:
    """A forward and backward pass of the pooled history."""
    torch.manual_seed(0)
    module = History(POOLINGS[pooling]())
    gradient = torch.randn(len(batch.label_B), _DIMENSION)

    def step() -> None:
        module.zero_grad(set_to_none=True)
        module(features).backward(gradient)

    return step


def training_step(batch: Batch, features: Features) -> Callable[[], None]:
    """A whole step of the ranker."""
    torch.manual_seed(0)
    model = Ranker()
    dense = [parameter for parameter in model.parameters() if parameter.shape != (_IDS, _DIMENSION)]
    optimizer = torch.optim.Adagrad(dense, lr=0.01)

    def step() -> None:
        train(model, optimizer, batch, features)

    return step


def seconds_per_step(step: Callable[[], None], count: int) -> Callable[[], float]:
    """CPU seconds of a step, averaged over so many; the best of a few tries, as other processes empty the caches."""

    def one() -> float:
        before = time.process_time()
        for _ in range(count):
            step()
        return (time.process_time() - before) / count

    return lambda: min(one() for _ in range(_TRIES))


def train(model: Ranker, optimizer: torch.optim.Optimizer, batch: Batch, features: Features) -> float:
    """One step; its loss."""
    model.zero_grad(set_to_none=True)
    loss = nn.functional.binary_cross_entropy_with_logits(model(batch, features), batch.label_B)
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def compare(
    name: str,
    make: Callable[[Features], Callable[[], None]],
    batch: Batch,
    rounds: int,
    at_least: float | None,
    deduplicated: Features | None = None,
) -> Figure:
    """Time of the plain form ÷ time of the deduplicated one."""
    features = deduplicated or batch.deduplicated
    # Both sides run for as long: whatever else the machine does then disturbs them equally.
    count = max(1, round(len(batch.plain.values()) / len(_values_of(features))))
    sides = {
        "plain": seconds_per_step(make(batch.plain), 1),
        "deduplicated": seconds_per_step(make(features), count),
    }
    interleave(sides, 1)
    seconds = interleave(sides, rounds)
    settings = {
        "factor": round(batch.factor, 2), "batch": len(batch.label_B), "longest_list": _LENGTH,
        "dimension": _DIMENSION, "rounds": rounds,
        "plain_ms": round(1e3 * statistics.median(seconds["plain"]), 2),
        "deduplicated_ms": round(1e3 * statistics.median(seconds["deduplicated"]), 2),
    }  # fmt: skip
    speed_up = ratio(seconds["plain"], seconds["deduplicated"])
    return Figure(f"dedup_training.{name}", speed_up, "× faster", at_least=at_least, settings=settings)


def _values_of(features: Features) -> Tensor:
    return features.groups[0].values if isinstance(features, DeduplicatedFeatures) else features.values()


def parity(rows: int, kind: torch.dtype, optimizer: type[torch.optim.Optimizer], other: str) -> tuple[float, float]:
    """The same steps on the plain form and on `other`: how far loss and weights are apart at their end."""
    torch.manual_seed(0)
    plain = Ranker().to(kind)
    models = [plain, copy.deepcopy(plain)]
    optimizers = [optimizer(model.parameters(), lr=0.01) for model in models]  # type: ignore[call-arg]
    losses = [0.0, 0.0]
    for index in range(_PARITY_STEPS):
        batch = make_batch(rows, 8, index)
        batch = replace(batch, dense_BI=batch.dense_BI.to(kind), label_B=batch.label_B.to(kind))
        losses[0] = train(models[0], optimizers[0], batch, batch.plain)
        if other == "deduplicated":
            losses[1] = train(models[1], optimizers[1], batch, batch.deduplicated)
        else:
            losses[1] = train(models[1], optimizers[1], *reversed_rows(batch))
    pairs = zip(models[0].parameters(), models[1].parameters(), strict=True)
    return abs(losses[0] - losses[1]), max(float((a - b).detach().abs().max()) for a, b in pairs)


def reversed_rows(batch: Batch) -> tuple[Batch, KeyedJaggedTensor]:
    """The same rows, the last one first: the same mathematics, sums in another order."""
    turned = torch.arange(len(batch.label_B)).flip(0)
    values, offsets = jagged_index_select(batch.plain.values(), batch.plain.offsets().to(torch.int64), turned)
    plain = KeyedJaggedTensor(keys=["history"], values=values, lengths=offsets.diff(), stride=len(turned))
    single, dense, label = (each[turned] for each in (batch.single_BF, batch.dense_BI, batch.label_B))
    return replace(batch, single_BF=single, dense_BI=dense, label_B=label), plain


def parity_figures(rows: int) -> list[Figure]:
    """Goals where sums in another order do not show: float64, and float32 without division by tiny gradients."""
    adagrad, sgd = torch.optim.Adagrad, torch.optim.SGD
    cases = (
        ("float64_adagrad", torch.float64, adagrad, "deduplicated", True),
        ("float32_sgd", torch.float32, sgd, "deduplicated", True),
        ("float32_adagrad", torch.float32, adagrad, "deduplicated", False),
        ("float32_adagrad_plain_in_another_order", torch.float32, adagrad, "plain", False),
    )
    figures = []
    for name, kind, optimizer, other, has_goal in cases:
        loss, weights = parity(rows, kind, optimizer, other)
        settings = {"steps": _PARITY_STEPS, "batch": rows, "factor": 8}
        loss_goal, weight_goal = (1e-6, 1e-4) if has_goal else (None, None)
        figures.append(
            Figure(f"dedup_training.loss_{name}", loss, "apart", at_most=loss_goal, settings=settings)
        )  # fmt: skip
        figures.append(
            Figure(f"dedup_training.weights_{name}", weights, "apart at most", at_most=weight_goal, settings=settings)
        )
    return figures


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Pooling by factor, end to end, unclustered data, parity."""
    rounds = arguments.rounds
    figures = []
    for repeats in (8, 19):
        batch = make_batch(arguments.batch, repeats, 0)
        for pooling in POOLINGS:
            goal = 3.0 if pooling == "sum" else 0.95 * batch.factor
            figures.append(
                compare(f"{pooling}_factor_{repeats}", lambda f, p=pooling, b=batch: pooling_step(p, b, f), batch,
                        rounds, goal)
            )  # fmt: skip
        # At factor 8 the rest of the model, which has nothing to deduplicate, leaves at most about 5.5.
        goal = 6.0 if repeats == 19 else None
        figures.append(
            compare(f"end_to_end_factor_{repeats}", lambda f, b=batch: training_step(b, f), batch, rounds, goal)
        )
    # Sums alone: beside attention or a transformer, the look-up of a form without repeats costs nothing measurable.
    batch = make_batch(arguments.batch, 1, 0)
    figures.append(
        compare("sum_unclustered", lambda f: pooling_step("sum", batch, f), batch, rounds, 0.97, batch.chosen)
    )
    return figures + parity_figures(arguments.parity_batch)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch", type=int, default=2048, help="rows of a batch (default 2048)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each side (default 5)")
    parser.add_argument("--parity-batch", type=int, default=64, help="rows of a batch of the 200 steps (default 64)")


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_benchmark(__doc__, measure, add_options)
