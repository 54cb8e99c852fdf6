"""What scaling decided about a running job, in its MLflow run: every candidate as a table, the choice as series."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from elastrec.platform.history import metric_names as names
from elastrec.platform.history.connection import Connection

DECISIONS_FILE = "scaling/decisions.json"
"""A table that MLflow shows and compares; one line per candidate of every round."""


class Decisions(Connection):
    """Writes into runs that exist. Methods raise HistoryError when the server cannot be reached or refuses."""

    def log_decision(
        self, run_id: str, candidates: Sequence[Mapping[str, Any]], figures: Mapping[str, float], *, changed: bool
    ) -> str:
        """Adds one round; returns the address of the run's page (empty when nobody serves pages).

        Args:
            candidates: lines of the table, equal keys in each.
            figures: points of the series, by metric name.
            changed: whether the job is being changed by it.
        """
        now = time.time()
        with self._explained(f"write a scaling decision into run {run_id}"):
            run = self._client.get_run(run_id)
            step = int(run.data.metrics.get(names.SAMPLES_TRAINED, 0))
            lines = [{"unix_seconds": now, "samples_trained": step, "applied": changed, **one} for one in candidates]
            if lines:
                columns = {name: [line[name] for line in lines] for name in lines[0]}
                self._client.log_table(run_id, columns, DECISIONS_FILE)
            for name, value in figures.items():
                self._client.log_metric(run_id, name, value, int(now * 1000), step)
        return f"{self._ui}/#/experiments/{run.info.experiment_id}/runs/{run_id}" if self._ui else ""
