"""Scaling decisions about a running job in its MLflow run: a table of candidates, series and pictures."""

from __future__ import annotations

import base64
import io
import json
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from elastrec.platform.history import metric_names as names
from elastrec.platform.history import scaling_figures
from elastrec.platform.history.connection import Connection
from elastrec.platform.history.points import last_step
from elastrec.platform.history.scaling_figures import Decision, Timed
from elastrec.platform.history.scratch import scratch_folder
from elastrec.platform.scaling.types import Coefficients, Observation
from elastrec.platform.specs.errors import HistoryError
from elastrec.platform.specs.shape import MigrationSeen
from elastrec.platform.specs.text.decoders import json_decoder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from elastrec.platform.scaling.model.throughput import ThroughputModel
    from elastrec.platform.scaling.types import Considered

EXPLAIN_FILE = "scaling/explain.json"
"""A table that MLflow shows and compares: every candidate of the latest rounds with its gain and the reason for the
choice."""
DECISIONS_FILE = "scaling/decisions.json"
"""A file with one `Decision` per round, the oldest first."""
_PLANS_FOLDER = "figures/plans"
_GAINS_PICTURE = "figures/scaling_gains.png"
_MOST_LINES = 2_000
_MOST_DECISIONS = 2_000
_SERVER_MEMORY = names.named(names.MEMORY_BYTES, role="parameter_server")
_TABLES_TAG = "mlflow.loggedArtifacts"
# Made at import: the page of all jobs reads the decisions of several jobs at once.
_decoder = json_decoder(list[Decision])


class PlanPictures(msgspec.Struct, frozen=True):
    """The reasons for a plan: its number, as in the picture of the throughput, and pictures as data URIs by file
    name."""

    number: int
    plan: Decision
    pictures: dict[str, str]


class Decisions(Connection):
    """Writes to existing runs. Methods raise HistoryError if the server cannot be reached or refuses."""

    def log_decision(
        self, run_id: str, decision: Decision, candidates: Sequence[Mapping[str, Any]], figures: Mapping[str, float]
    ) -> list[Decision]:
        """Adds one round; returns all rounds of the run.

        Args:
            candidates: lines of the table, equal keys in each.
            figures: points of the series, by metric name.
        """
        milliseconds, step = int(decision.unix_seconds * 1000), decision.samples_trained
        decisions = [*self.decisions(run_id), decision][-_MOST_DECISIONS:]
        with self._explained(f"write a scaling decision into run {run_id}"):
            lines = [
                {"unix_seconds": decision.unix_seconds, "samples_trained": step, "applied": decision.changed, **one}
                for one in candidates
            ]
            if lines:
                self._append_table(run_id, lines)
            self._log_text(run_id, msgspec.json.encode(decisions).decode(), DECISIONS_FILE)
            for name, value in figures.items():
                self._client.log_metric(run_id, name, value, milliseconds, step)
        return decisions

    def decisions(self, run_id: str) -> list[Decision]:
        """All rounds that were written to the run."""
        text = self._text(run_id, DECISIONS_FILE)
        if text is None:
            return []
        try:
            return _decoder.decode(text)
        except msgspec.MsgspecError as error:
            raise HistoryError(
                f"run {run_id}: its {DECISIONS_FILE} cannot be read: {error}; delete it, scaling writes it anew"
            ) from error

    def last_step(self, run_id: str) -> int:
        """The step of the last window that was written to the run."""
        with self._explained(f"read run {run_id}"):
            return last_step(self._client.get_run(run_id).data.metrics)

    def log_throughput(self, run_id: str, decisions: Sequence[Decision]) -> None:
        """Draws speed and workers over time with every decision, from the run's own series."""
        self._log_figures(run_id, {"figures/throughput.png": self._throughput(run_id, decisions)})

    def throughput_picture(self, run_id: str, decisions: Sequence[Decision]) -> str:
        """The same as a PNG in a data URI; empty if nothing was decided or measured."""
        return _embedded(self._throughput(run_id, decisions)) if decisions else ""

    def _throughput(self, run_id: str, decisions: Sequence[Decision]) -> Figure | None:
        return scaling_figures.throughput(
            self._timed(run_id, names.SAMPLES_PER_SECOND), self._timed(run_id, names.WORKERS_RUNNING), decisions
        )

    def log_memory(self, run_id: str, decisions: Sequence[Decision]) -> None:
        """Draws the memory of the server with the most memory in use: forecasts and measurements."""
        self._log_figures(run_id, {scaling_figures.MEMORY_PICTURE: self._memory(run_id, decisions)})

    def memory_picture(self, run_id: str, decisions: Sequence[Decision]) -> str:
        """The same as a PNG in a data URI; empty if there is nothing to draw."""
        return _embedded(self._memory(run_id, decisions))

    def _memory(self, run_id: str, decisions: Sequence[Decision]) -> Figure | None:
        if all(each.memory is None for each in decisions):
            return None
        with self._explained(f"read the memory of run {run_id}"):
            points = self._client.get_metric_history(run_id, _SERVER_MEMORY)
        return scaling_figures.server_memory(sorted((each.step, each.value) for each in points), decisions)

    def log_coefficients(self, run_id: str, coefficients: Coefficients, dense_bytes: int) -> None:
        """Stores the job's fitted model for similar jobs in the future.

        Args:
            dense_bytes: M of the fit, without which the coefficient of synchronisation has no meaning.
        """
        from mlflow.entities import Metric

        step, milliseconds = self.last_step(run_id), int(time.time() * 1000)
        values = {**coefficient_figures(coefficients), names.SCALING_DENSE_BYTES: float(dense_bytes)}
        figures = [Metric(name, value, milliseconds, step) for name, value in values.items()]
        with self._explained(f"write the throughput model into run {run_id}"):
            self._client.log_batch(run_id, metrics=figures)

    def log_model(
        self,
        run_id: str,
        decisions: Sequence[Decision],
        considered: Sequence[Considered],
        model: ThroughputModel | None,
        observations: Sequence[Observation],
    ) -> None:
        """Draws the fit, the Pareto front, and predicted and measured gains of the last plans.

        A picture is drawn only if it is informative: a fit through as many configurations as the model has coefficients
        is always exact, and a front needs an alternative to the present allocation. If the last decision is a plan, its
        pictures are also stored for the report.
        """
        batch = model.shape.batch_size if model else 0
        kept = scaling_figures.kept_promises(decisions, observations, batch) if model else []
        if kept:
            with self._explained(f"write a scaling decision into run {run_id}"):
                last = kept[-1]
                self._client.log_metric(run_id, names.SCALING_LAST_PREDICTED_GAIN, last.predicted_gain)
                self._client.log_metric(run_id, names.SCALING_LAST_MEASURED_GAIN, last.measured_gain)
        reasons = {
            "scaling_fit.png": scaling_figures.fit_against_measured(model, observations)
            if model and model.configurations > model.rank
            else None,
            "scaling_candidates.png": scaling_figures.pareto(considered) if len(considered) > 1 else None,
        }
        drawn = {f"figures/{name}": figure for name, figure in reasons.items()}
        drawn[_GAINS_PICTURE] = scaling_figures.promises(kept)
        if decisions and decisions[-1] in scaling_figures.latest_plans(decisions):
            drawn |= {f"{_folder_of(decisions[-1])}/{name}": figure for name, figure in reasons.items()}
        self._log_figures(run_id, drawn)

    def plan_pictures(self, run_id: str, decisions: Sequence[Decision]) -> list[PlanPictures]:
        """The pictures that were drawn when the latest plans were made, the oldest plan first."""
        plans = scaling_figures.latest_plans(decisions)
        with self._explained(f"read the pictures of run {run_id}"):
            folders = {each.path for each in self._client.list_artifacts(run_id, _PLANS_FOLDER)} if plans else set()
            return [
                PlanPictures(number, plan, self._pictures(run_id, _folder_of(plan)))
                for number, plan in enumerate(plans, 1)
                if _folder_of(plan) in folders
            ]

    def gains_picture(self, run_id: str) -> str:
        """Predicted and measured gains of the last plans as a PNG in a data URI; empty: none was measured."""
        with self._explained(f"read the pictures of run {run_id}"):
            listed = {each.path for each in self._client.list_artifacts(run_id, _GAINS_PICTURE.rpartition("/")[0])}
            return self._picture(run_id, _GAINS_PICTURE) if _GAINS_PICTURE in listed else ""

    def _pictures(self, run_id: str, folder: str) -> dict[str, str]:
        """Pictures of a folder of the run as data URIs, by file name."""
        listed = [each.path for each in self._client.list_artifacts(run_id, folder) if not each.is_dir]
        return {path.rpartition("/")[2]: self._picture(run_id, path) for path in sorted(listed)}

    def _picture(self, run_id: str, path: str) -> str:
        with scratch_folder() as place:
            return _data_uri(Path(self._client.download_artifacts(run_id, path, str(place))).read_bytes())

    def log_migrations(self, run_id: str, seen: Sequence[MigrationSeen]) -> None:
        """Draws when which server started, copied rows, took them over and left."""
        self._log_figures(run_id, {scaling_figures.MIGRATIONS_PICTURE: scaling_figures.migrations(seen)})

    def _timed(self, run_id: str, name: str) -> list[Timed]:
        with self._explained(f"read {name} of run {run_id}"):
            points = self._client.get_metric_history(run_id, name)
        return [Timed(each.timestamp / 1000, each.value) for each in sorted(points, key=lambda each: each.timestamp)]

    def _log_figures(self, run_id: str, drawn: Mapping[str, Figure | None]) -> None:
        """Writes figures by their paths in the run; a figure that has two paths is rendered once."""
        rendered: dict[Figure, Path] = {}
        with self._explained(f"write the pictures of run {run_id}"), scratch_folder() as place:
            for path, figure in drawn.items():
                if figure is None:
                    continue
                file = place / path
                file.parent.mkdir(parents=True, exist_ok=True)
                if figure in rendered:
                    shutil.copyfile(rendered[figure], file)
                else:
                    figure.savefig(file)
                    rendered[figure] = file
            if rendered:
                self._client.log_artifacts(run_id, str(place))

    def _append_table(self, run_id: str, lines: Sequence[Mapping[str, Any]]) -> None:
        """Like `MlflowClient.log_table`, but with a limit for the length of the table."""
        columns = list(lines[0])
        text = self._text(run_id, EXPLAIN_FILE)
        before = json.loads(text) if text else {"columns": columns, "data": []}
        old = [dict(zip(before["columns"], row, strict=True)) for row in before["data"]]
        data = [[row.get(name) for name in columns] for row in (*old, *lines)][-_MOST_LINES:]
        self._log_text(run_id, json.dumps({"columns": columns, "data": data}), EXPLAIN_FILE)
        shown = json.loads(self._client.get_run(run_id).data.tags.get(_TABLES_TAG, "[]"))
        entry = {"path": EXPLAIN_FILE, "type": "table"}
        if entry not in shown:
            self._client.set_tag(run_id, _TABLES_TAG, json.dumps([*shown, entry]))

    def _text(self, run_id: str, path: str) -> str | None:
        """An artifact's text; None if it does not exist."""
        folder = path.rpartition("/")[0]
        with self._explained(f"read {path} of run {run_id}"), scratch_folder() as place:
            if all(each.path != path for each in self._client.list_artifacts(run_id, folder)):
                return None
            return Path(self._client.download_artifacts(run_id, path, str(place))).read_text(encoding="utf-8")


def coefficient_figures(coefficients: Coefficients) -> dict[str, float]:
    """Figures by metric name; figures that were not measured are absent."""
    return {
        _name(field): float(value)
        for field in coefficients.__struct_fields__
        if (value := getattr(coefficients, field)) is not None
    }


def read_coefficients(metrics: Mapping[str, float]) -> Coefficients | None:
    """Reads the coefficients from a run's metrics; None if they are missing or invalid."""
    found = {field: metrics[_name(field)] for field in Coefficients.__struct_fields__ if _name(field) in metrics}
    if not all(math.isfinite(value) and value >= 0 for value in found.values()) or not any(found.values()):
        return None
    try:
        return Coefficients(**found)
    except TypeError:
        # Every fit has all of these coefficients.
        return None


def _name(field: str) -> str:
    return names.named(names.SCALING_COEFFICIENT, name=field)


def _embedded(figure: Figure | None) -> str:
    """A picture as a data URI, or an empty text. At most some hundred KB, because all pictures have the same size in
    pixels."""
    if figure is None:
        return ""
    written = io.BytesIO()
    figure.savefig(written, format="png")
    return _data_uri(written.getvalue())


def _data_uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _folder_of(decision: Decision) -> str:
    return f"{_PLANS_FOLDER}/{decision.unix_seconds * 1000:.0f}"
