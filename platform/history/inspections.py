"""Inspected logs in MLflow: one run per inspection of a partition, so that figures can be compared from day to day."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from elastrec.platform.history import metric_names as names
from elastrec.platform.history.connection import Connection
from elastrec.platform.history.delivery.sink import POINTS_PER_CALL
from elastrec.platform.history.inspection_picture import inspection_picture
from elastrec.platform.specs.text.uris import masked

if TYPE_CHECKING:
    from elastrec.platform.data.clustering.inspection import DataFacts

TAG_PATH, TAG_PARTITION = "elastrec.data.path", "elastrec.data.partition"
_PICTURE, _FACTS = "inspection.png", "inspection.json"


def inspection_metrics(facts: DataFacts) -> dict[str, float]:
    """Figures by metric name."""
    metrics: dict[str, float] = {
        names.DATA_ROWS: facts.rows,
        names.DATA_SESSIONS: facts.sessions,
        names.DATA_SAMPLES_PER_SESSION: facts.samples_per_session,
        names.DATA_GROUPS: len(facts.proposal.groups),
    }
    for place, saving in (("stored", facts.storage), ("sent", facts.sent), ("pooled", facts.pooled)):
        metrics[names.named(names.DATA_BEFORE, what=place)] = saving.before
        metrics[names.named(names.DATA_AFTER, what=place)] = saving.after
        metrics[names.named(names.DATA_RATIO, what=place)] = saving.ratio
    for factor in facts.features:
        metrics[names.named(names.DATA_FACTOR, feature=factor.name)] = factor.measured
        metrics[names.named(names.DATA_FACTOR_PREDICTED, feature=factor.name)] = factor.predicted
    return {name: float(value) for name, value in metrics.items()}


class Inspections(Connection):
    """Writes runs of one experiment. Every method raises HistoryError if the server cannot be reached or refuses."""

    def record(self, facts: DataFacts, path: str, partition: str) -> str:
        """Writes a finished run with the figures as metrics, the picture and the whole table; returns its id.

        A run that cannot be written to its end is closed as failed.
        """
        with self._explained(f"record what was found in {path} {partition}"):
            run = self._client.create_run(
                self._experiment_id,
                run_name=f"inspection {path.rstrip('/').rsplit('/', 1)[-1]} {partition}".rstrip(),
                tags={TAG_PATH: masked(path), TAG_PARTITION: partition, "mlflow.source.name": "elastrec"},
            )
            run_id = str(run.info.run_id)
            try:
                self._write(run_id, facts)
            except Exception:
                # MLflow may be the reason.
                with suppress(Exception):
                    self._client.set_terminated(run_id, "FAILED")
                raise
            self._client.set_terminated(run_id, "FINISHED")
        return run_id

    def _write(self, run_id: str, facts: DataFacts) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, 0) for name, value in inspection_metrics(facts).items()]
        for first in range(0, len(metrics), POINTS_PER_CALL):
            self._client.log_batch(run_id, metrics=metrics[first : first + POINTS_PER_CALL])
        self._log_figure(run_id, inspection_picture(facts), _PICTURE)
        self._log_text(run_id, json.dumps(asdict(facts), indent=1), _FACTS)
