"""The accuracy with which the throughput model recovers published coefficients, and its RMSLE compared with plain least
squares.

    python -m benchmarks throughput_model [--seeds 200] [--problems 200] [--output json]

Times are generated from the coefficients that DLRover-RM publishes (α_grad 3.48, α_upd 2.36, α_emb 2.45, α_sync 0.68,
Σβ 2.45) with noise of 5 %, so all figures are simulated. The 30 configurations are chosen one after the other: always
the one whose prediction is most uncertain, among 256 with 1–64 workers, 1–32 servers and 0.25–32 cores ("explored").
For comparison, 30 of them are drawn at random.

What turns figures red: `least_relative` in `platform/scaling/model/kernels.py` that returns `plain_K`, so that the
slowest configurations decide (`explored`), or whatever else is not at least as good (`worse_than_plain`: `fit_relative`
by least squares of the relative errors, cut at 0).
"""

from __future__ import annotations

import argparse
import itertools

import numpy as np

from benchmarks.common.figures import Figure, run_benchmark
from elastrec.platform.scaling.amounts import Allocation
from elastrec.platform.scaling.model.columns import TERMS, Columns, Floats, features
from elastrec.platform.scaling.model.least_squares import fit_plain, fit_relative, rmsle
from elastrec.platform.scaling.model.throughput import ThroughputModel, fit
from elastrec.platform.scaling.types import ModelShape, Observation

PUBLISHED = {"gradient": 3.48, "update": 2.36, "synchronise": 0.68, "embedding": 2.45, "fixed": 2.45}
# The paper gives no units. In these, every term can be the largest somewhere among the configurations.
_SHAPE = ModelShape(batch_size=4, dense_bytes=30, embedding_dimension=2, network_bytes_per_second=10.0)
_NOISE = 0.05
_CONFIGURATIONS = 30


def _grid() -> list[Allocation]:
    cores = (0.25, 1.0, 4.0, 32.0)
    return [
        Allocation(
            workers=w, parameter_servers=p, worker_cores=cw, parameter_server_cores=cp,
            worker_memory_bytes=2**30, parameter_server_memory_bytes=2**30,
        )
        for w, p, cw, cp in itertools.product((1, 4, 16, 64), (1, 4, 16, 32), cores, cores)
    ]  # fmt: skip


def _rows(allocations: list[Allocation]) -> Floats:
    terms = features(_SHAPE, Columns.of(allocations))
    return np.column_stack([terms, np.ones(len(terms))])


class Experiment:
    """Noisy measurements of the published model, and a fit to them."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._grid = _grid()
        self._seconds = _rows(self._grid) @ np.array(list(PUBLISHED.values()))

    def drawn(self, count: int) -> list[int]:
        """Configurations at random, each once."""
        return [int(each) for each in self._random.choice(len(self._grid), count, replace=False)]

    def measured(self, chosen: int) -> Observation:
        noise = float(np.exp(_NOISE * self._random.standard_normal()))
        return Observation(allocation=self._grid[chosen], iteration_seconds=self._seconds[chosen] * noise)

    def random(self) -> ThroughputModel:
        return fit(_SHAPE, [self.measured(each) for each in self.drawn(_CONFIGURATIONS)])

    def explored(self) -> ThroughputModel:
        chosen = self.drawn(2)
        seen = [self.measured(each) for each in chosen]
        columns = Columns.of(self._grid)
        while len(chosen) < _CONFIGURATIONS:
            unsure = fit(_SHAPE, seen).predict(columns).relative_error
            unsure[chosen] = -1.0
            chosen.append(int(unsure.argmax()))
            seen.append(self.measured(chosen[-1]))
        return fit(_SHAPE, seen)


def _errors(model: ThroughputModel) -> list[float]:
    return [abs(getattr(model.coefficients, name) / true - 1.0) for name, true in PUBLISHED.items()]


def recovery(seeds: int) -> list[Figure]:
    """Error of the coefficients over many noisy experiments."""
    settings = {"configurations": _CONFIGURATIONS, "noise": _NOISE, "experiments": seeds}
    figures = []
    for kind in ("explored", "random"):
        models = [getattr(Experiment(seed), kind)() for seed in range(seeds)]
        each, goal = np.array([_errors(model) for model in models]), 5.0 if kind == "explored" else None
        for name, column in zip(PUBLISHED, each.T, strict=True):
            figures.append(
                Figure(
                    f"throughput_model.{kind}.{name}",
                    100 * float(np.median(column)),
                    "% median error",
                    at_most=goal,
                    simulated=True,
                    settings={
                        **settings,
                        "published": PUBLISHED[name],
                        "p90_%": round(100 * float(np.quantile(column, 0.9)), 2),
                    },
                )
            )
        worst = 100 * float(np.median(each.max(axis=1)))
        figures.append(
            Figure(
                f"throughput_model.{kind}.worst_coefficient", worst, "% median over experiments",
                at_most=goal, simulated=True,
                settings={**settings, "rmsle": round(float(np.median([model.rmsle for model in models])), 4)},
            )
        )  # fmt: skip
    return figures


def against_plain(problems: int) -> list[Figure]:
    """RMSLE of ours over plain NNLS on random problems: sizes, scales, noise and true shares all differ."""
    ratios, worse = [], 0
    for seed in range(problems):
        random = np.random.default_rng(10_000 + seed)
        rows = int(random.integers(5, 41))
        spread = np.exp(random.normal(0.0, random.uniform(0.3, 2.5), size=(rows, len(TERMS))))
        matrix = np.column_stack([spread * 10.0 ** random.uniform(-6, 6, size=len(TERMS)), np.ones(rows)])
        shares = random.dirichlet(np.ones(matrix.shape[1]))
        seconds = (
            (matrix / matrix.mean(axis=0)) @ shares * np.exp(random.uniform(0, 0.3) * random.standard_normal(rows))
        )
        ours = rmsle(matrix, seconds, fit_relative(matrix, seconds, np.ones(rows)))
        plain = rmsle(matrix, seconds, fit_plain(matrix, seconds))
        worse += ours > plain * (1 + 1e-9)
        ratios.append(ours / plain if plain > 1e-12 else 1.0)
    settings = {"problems": problems, "rows": "5–40", "noise": "0–30 %"}
    return [
        Figure("throughput_model.worse_than_plain", worse, "problems", at_most=0, simulated=True, settings=settings),
        Figure(
            "throughput_model.rmsle_against_plain", float(np.median(ratios)), "× plain NNLS", simulated=True,
            settings=settings,
        ),
    ]  # fmt: skip


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Both parts."""
    return [*recovery(arguments.seeds), *against_plain(arguments.problems)]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=200, help="noisy experiments (default 200)")
    parser.add_argument("--problems", type=int, default=200, help="random problems (default 200)")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options)
