"""Records from which jobs start."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from elastrec.checkpoints import PartWriter, answer, commit_record, new_record_uri
from elastrec.platform.jobs.types import Prepared
from elastrec.platform.master.service.resumption import ATTRIBUTE, Numbering
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.splits import TRAINING_STREAM, Positions, StreamPositions
from elastrec.platform.specs.text.loading import job_from_json


def final_record(store: Path, made: TrainingJob, step: int, interval: tuple[str, str] = ("", "")) -> str:
    """The URI of a final record that an earlier run of the job has left.

    Args:
        interval: start and end of its rows.
    """
    return _record(store, made, step, "final", b"{}", {}, interval)


def periodic_record(store: Path, prepared: Prepared, step: int) -> str:
    """The URI of a record of an earlier run of a prepared job, when one of its shards was trained."""
    made = job_from_json(prepared.job_json)
    numbering = Numbering.of_job(made, prepared.training_digest, prepared.training_rows)
    positions = Positions({TRAINING_STREAM: StreamPositions(1, [])}).encode()
    return _record(store, made, step, "periodic", positions, {ATTRIBUTE: msgspec.json.encode(numbering).decode()})


def _record(
    store: Path,
    made: TrainingJob,
    step: int,
    kind: str,
    positions: bytes,
    attributes: dict[str, str],
    interval: tuple[str, str] = ("", ""),
) -> str:
    uri = new_record_uri(str(store), made.metadata.name, "earlier", step)
    groups = [answer(made.spec.data.tables, range(64))]
    with PartWriter(uri, "ps-0", groups=groups, dense_ranges=[(0, 6)]) as writer:
        writer.write_dense("w", (3, 2), 0, {"value": np.zeros(6, np.float32)})
        part = writer.finish()
    commit_record(
        uri,
        [part],
        positions,
        job=made,
        job_id="earlier",
        kind=kind,
        step=step,
        generation=0,
        attributes=attributes,
        interval=interval,
    )
    return uri
