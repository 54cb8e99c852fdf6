"""A model that jobs of a benchmark continue, as daily jobs do, so that restarts must save and restore its rows."""

from __future__ import annotations

import copy
import itertools
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common.jobs import run_job
from elastrec.platform import jobs
from elastrec.platform.data.generating.generator import GenerateReport, GenerateSpec, generate, training_data_for

Array = np.ndarray[Any, Any]

FIRST_ID = 2**32
"""First id of the model's rows; lower ids are free for the jobs that continue it."""


def wide_log(spec: GenerateSpec, folder: Path, rows: int) -> GenerateReport:
    """A click log of two days whose ids are all different.

    Args:
        spec: its columns.
        rows: number of rows that a pass over one day creates in all tables together, rounded to their number.
    """
    rows_per_day = rows // spec.sparse
    log = generate(spec.model_copy(update={"path": str(folder), "rows_per_day": rows_per_day, "days": 2}))
    first = itertools.count(FIRST_ID, rows)
    replace_ids(folder, lambda name, count: np.arange(count) + next(first))
    return log


def replace_ids(folder: Path, ids_of: Callable[[str, int], Array]) -> None:
    """Replaces the ids of a log's sparse features, file by file.

    Args:
        ids_of: takes a column's name and a number of rows; gives int64 of this length.
    """
    for file in sorted(folder.rglob("*.parquet")):
        table = pq.read_table(file)
        for column, field in enumerate(table.schema):
            if field.name.startswith("C"):
                table = table.set_column(column, field, pa.array(ids_of(field.name, len(table)), field.type))
        pq.write_table(table, file, row_group_size=16_384)


def continue_model(
    platform: jobs.Platform, contents: Sequence[dict[str, Any]], spec: GenerateSpec, folder: Path, rows: int
) -> None:
    """Makes jobs continue one model (`continual.start_from`), which one worker and one server train.

    Args:
        contents: the job files; the model is that of the first, with another log and other pods.
        folder: for the log, which is removed afterwards.

    Raises:
        RuntimeError: the job failed.
    """
    log = wide_log(spec, folder, rows)
    mine = copy.deepcopy(contents[0])
    mine["spec"]["data"] = json.loads(training_data_for(log.spec).model_dump_json(exclude_none=True))
    mine["spec"]["training"].update(epochs=1, consistency={"mode": "async"})
    for role in ("worker", "parameter_server"):
        mine["spec"]["resources"][role].update(count=1, cores=1.0, memory="6Gi")
    ended = run_job(platform, mine)
    shutil.rmtree(folder)
    assert ended.metrics.checkpoint is not None, "a job that succeeded has saved its model"
    for content in contents:
        content["spec"]["continual"] = {"start_from": ended.metrics.checkpoint}
