"""The throughput model on real local runs: predicted against measured steps in configurations left out of the fit.

    python -m benchmarks throughput_model_real [--overlapped] [--results FILE] [--pictures FOLDER] [--output json]

Three models train in 16 configurations each: numbers of workers and servers, and cores of both by control groups. They
never request more than two cores in total, because the model has no term for pods without their granted cores. Each
configuration is predicted from the others (leave-one-configuration-out). Steps are read from the job's master, as in
production. Beside each figure is that of the paper's plain sum of a step's parts (§4.1).

Goals are for jobs without overlapping pulls; `--overlapped` measures the same with `overlap_pull`, where a step takes
as long as its longest part. Each half takes about 25 minutes; `--results` keeps the measurements, and a later call
continues them. Pods have a higher priority than other load, which may still affect the figures.

If the factors of all parts of a step are 1 (`rows` in `platform/scaling/model/kernels.py`), both goals are red.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.common.configurations import Shape, measure_shapes
from benchmarks.common.figures import Figure, run_benchmark
from benchmarks.common.jobs import expect_limits, private_platform
from elastrec.platform.data.generating.generator import GenerateReport, GenerateSpec, generate, training_data_for
from elastrec.platform.master.scaling.facts import observation_of
from elastrec.platform.scaling.model.columns import Columns
from elastrec.platform.scaling.model.throughput import fit
from elastrec.platform.scaling.types import ModelShape, Observation
from elastrec.platform.transport.messages.profile import Measured

MODELS: dict[str, dict[str, Any]] = {
    "wide_and_deep": {"embedding_dimension": 16, "options": {"layer_sizes": [128, 64]}},
    "dlrm": {
        "embedding_dimension": 16,
        "options": {"bottom_layer_sizes": [128, 64], "top_layer_sizes": [128, 64]},
    },
    "dcn_v2": {"embedding_dimension": 8, "options": {}},
}
SERVERS = (1, 2)
_BATCH, _ROWS, _LEAST_STEPS, _WEIGHT = 512, 60_000, 20, 128
_VISITS, _WARM_UP_SECONDS = 5, 8.0
_SIZES = ((0.2, 0.25), (0.4, 0.25), (0.4, 0.1))
"""Cores of a worker and of a server. A worker alone does not feel the smallest server."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What one job of a model measured with one number of servers."""

    model: str
    servers: int
    overlap: bool
    shape: ModelShape
    measured: list[Measured]

    @property
    def observations(self) -> list[Observation]:
        asked = shapes()
        return [
            observation_of(each)
            for each in self.measured
            # Not the one in which the job came up.
            if each.steps_ever >= _LEAST_STEPS and any(shape.is_of(each.configuration) for shape in asked)
        ]


def shapes() -> list[Shape]:
    """All of them again and again: the machine's speed drifts, and no shape may be measured in one stretch of time."""
    once = [Shape(workers, *size) for workers in (3, 2, 1) for size in (_SIZES if workers > 1 else _SIZES[:2])]
    return [shape for visit in range(_VISITS) for shape in (once if visit % 2 == 0 else reversed(once))]


def job_content(log: GenerateReport, model: str, servers: int, overlap: bool) -> dict[str, Any]:
    """Workers start with a whole core; all of them are smaller when it counts."""
    spec = {
        "model": {"architecture": model, **MODELS[model]},
        "data": json.loads(training_data_for(log.spec).model_dump_json(exclude_none=True)),
        "training": {"batch_size": _BATCH, "batches_per_shard": 10, "epochs": 1000, "overlap_pull": overlap},
        "resources": {
            "master": {"cores": 0.2, "memory": "512Mi"},
            "worker": {"count": 3, "cores": 1.0, "memory": "2Gi"},
            "parameter_server": {"count": servers, "cores": 1.0, "memory": "1Gi"},
        },
        "checkpoint": {"interval": "0s"},
        "continual": {"start_from": "nothing"},
    }
    return {"metadata": {"name": "measured"}, "spec": spec}


def collect(file: Path | None, seconds: float, *, overlapped: bool) -> list[Run]:
    """Measures every model with every number of servers, without configurations that the file already has."""
    runs = msgspec.json.decode(file.read_bytes(), type=list[Run]) if file and file.exists() else []
    done = {(run.model, run.servers, run.overlap) for run in runs}
    wanted = itertools.product(MODELS, SERVERS, (overlapped,))
    missing = [each for each in wanted if each not in done]
    if not missing:
        return runs
    with tempfile.TemporaryDirectory() as folder, private_platform(weight=_WEIGHT) as platform:
        expect_limits(platform, "throughput_model_real")
        log = generate(
            GenerateSpec(path=f"{folder}/clicks", rows_per_day=_ROWS, days=2, seed=1, dense=8, sparse=12, lists=0)
        )
        for model, servers, overlap in missing:

            def say(line: str, model: str = model) -> None:
                print(f"{model}: {line}", file=sys.stderr, flush=True)

            content = job_content(log, model, servers, overlap)
            profile = measure_shapes(
                platform, content, shapes(), seconds=seconds, least_steps=_LEAST_STEPS,
                warm_up_seconds=_WARM_UP_SECONDS, say=say,
            )  # fmt: skip
            runs.append(
                Run(
                    model=model,
                    servers=servers,
                    overlap=overlap,
                    shape=ModelShape(
                        batch_size=_BATCH,
                        dense_bytes=profile.dense_bytes,
                        embedding_dimension=int(MODELS[model]["embedding_dimension"]),
                    ),
                    measured=profile.measured,
                )
            )
            if file is not None:
                file.write_bytes(msgspec.json.encode(runs))
    return runs


def left_out_errors(
    shape: ModelShape, observations: Sequence[Observation], *, refine: bool = True
) -> list[tuple[float, float]]:
    """(predicted, measured) seconds per step of every configuration, predicted from all others.

    The form of a step (`refine`) is also chosen only from the others.
    """
    pairs = []
    for index, left_out in enumerate(observations):
        others = [each for row, each in enumerate(observations) if row != index]
        predicted = fit(shape, others, refine=refine).predict(Columns.of([left_out.allocation])).iteration_seconds[0]
        pairs.append((float(predicted), left_out.iteration_seconds))
    return pairs


def figures_of(runs: Sequence[Run], *, overlapped: bool, pictures: Path | None = None) -> list[Figure]:
    """Errors of all models together and of each, of the runs with or without pulls that overlap the computation."""
    found, everything, summed = [], list[float](), list[float]()
    prefix = "throughput_model_real" + (".overlapped" if overlapped else "")
    for model in MODELS:
        mine = [run for run in runs if (run.model, run.overlap) == (model, overlapped)]
        observations = [each for run in mine for each in run.observations]
        pairs = left_out_errors(mine[0].shape, observations)
        errors = [abs(predicted / measured - 1.0) for predicted, measured in pairs]
        everything += errors
        of_sum = left_out_errors(mine[0].shape, observations, refine=False)
        summed += [abs(predicted / measured - 1.0) for predicted, measured in of_sum]
        whole = fit(mine[0].shape, observations)
        settings = {
            "configurations": len(observations),
            "steps_in_each": min(each.iterations for each in observations),
            "p90_%": round(100 * float(np.quantile(errors, 0.9)), 1),
            "worst_%": round(100 * max(errors), 1),
            "rmsle_of_all": round(whole.rmsle, 3),
            "overlap_of_all": whole.form.overlap,
            "by_request": whole.form.by_request,
            "ms_per_step": f"{1000 * min(m for _, m in pairs):.0f}–{1000 * max(m for _, m in pairs):.0f}",
        }
        name = f"{prefix}.{model}"
        found.append(Figure(f"{name}.median", 100 * float(np.median(errors)), "% left-out error", settings=settings))
        if pictures is not None:
            draw(pictures / f"{model}{'_overlapped' * overlapped}.png", model, whole, observations, pairs)
    settings = {
        "configurations": len(everything),
        "models": len(MODELS),
        "plain_sum_median_%": round(100 * float(np.median(summed)), 1),
        "plain_sum_p90_%": round(100 * float(np.quantile(summed, 0.9)), 1),
    }
    return [
        Figure(
            f"{prefix}.median", 100 * float(np.median(everything)), "% left-out error",
            at_most=None if overlapped else 10.0, settings=settings,
        ),
        Figure(
            f"{prefix}.p90", 100 * float(np.quantile(everything, 0.9)), "% left-out error",
            at_most=None if overlapped else 20.0, settings=settings,
        ),
        *found,
    ]  # fmt: skip


def draw(file: Path, model: str, fitted: Any, observations: Sequence[Observation], pairs: Sequence[Any]) -> None:
    """Fig. 11 of DLRover-RM: measured speed over workers, the fit as lines, and predictions of left-out points."""
    from elastrec.platform.history.scaling_figures import fit_against_measured

    file.parent.mkdir(parents=True, exist_ok=True)
    left_out = [predicted for predicted, _ in pairs]
    figure = fit_against_measured(fitted, observations, left_out, title=f"{model}: fitted and measured")
    if figure is not None:
        figure.savefig(file)


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Collects missing measurements, then leaves every configuration out once."""
    runs = collect(arguments.results, arguments.seconds, overlapped=arguments.overlapped)
    return figures_of(runs, overlapped=arguments.overlapped, pictures=arguments.pictures)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--overlapped", action="store_true", help="with `overlap_pull`, instead of without")
    parser.add_argument("--results", type=Path, help="keep measurements in this file, and use what it has")
    parser.add_argument("--pictures", type=Path, help="folder for one picture per model")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each stay in a configuration (default 2)")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options, has_pods=True)
