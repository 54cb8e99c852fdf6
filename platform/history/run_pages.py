"""What a run shows of its job: texts, pictures and the report. All are made of the run and of the job's explanation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import structlog

from elastrec.platform.history import figures
from elastrec.platform.history import metric_names as names
from elastrec.platform.history.job_runs import JobRuns
from elastrec.platform.history.records import TAG_CHAMPION_RUN, JobRecord, metric_value, read_record
from elastrec.platform.specs.errors import HistoryError
from elastrec.platform.specs.text.uris import masked

if TYPE_CHECKING:
    from elastrec.platform.history.report import Story

_log = structlog.get_logger(__name__)


class RunPages(JobRuns):
    """Writes the artifacts of runs."""

    def _log_artifacts(self, run_id: str, reason: str, story: Story | None) -> None:
        # Texts first: nobody else has them, while pictures can be drawn again.
        for write in (
            lambda: self._log_texts(run_id, reason, story),
            lambda: self.log_figures(run_id),
            lambda: self._log_migrations(run_id, story),
            lambda: self._log_report(run_id, story),
        ):
            try:
                write()
            except HistoryError as error:
                _log.warning("artifacts_not_written", run_id=run_id, error=str(error))
                return
            except Exception:
                # Figures of users' models can have values that matplotlib does not draw.
                _log.exception("artifact_not_made", run_id=run_id)

    def _log_texts(self, run_id: str, reason: str, story: Story | None) -> None:
        with self._explained(f"write the artifacts of run {run_id}"):
            if reason:
                self._log_text(run_id, masked(reason), "reason.txt")
            if story is not None:
                self._log_text(run_id, masked(story.text), "explanation.txt")

    def log_figures(self, run_id: str) -> list[str]:
        """Learning curve, calibration and the parts of a step, from the run's own series; returns their paths."""
        with self._explained(f"read run {run_id}"):
            stored: Mapping[str, float] = self._client.get_run(run_id).data.metrics
        latest = {name: metric_value(value) for name, value in stored.items()}
        columns = [
            [value for _, value in self.series(run_id, name)] if name in latest else []
            for name in (names.CALIBRATION_PREDICTED, names.CALIBRATION_OBSERVED, names.CALIBRATION_ROWS)
        ]
        quality = (names.LOSS, names.AUC, names.NORMALIZED_ENTROPY)
        evaluation = {names.AUC: names.EVALUATION_AUC, names.NORMALIZED_ENTROPY: names.EVALUATION_NORMALIZED_ENTROPY}
        drawn = {
            "figures/learning_curve.png": figures.learning_curve(
                {name: self.series(run_id, name) for name in quality if name in latest},
                {name: latest[key] for name, key in evaluation.items() if key in latest},
            ),
            "figures/calibration.png": figures.calibration(columns[0], columns[1], columns[2]),
            "figures/step_seconds.png": figures.step_seconds(
                {name: self.series(run_id, name) for name in figures.STEP_SERIES if name in latest}
            ),
        }
        with self._explained(f"write the pictures of run {run_id}"):
            for path, figure in drawn.items():
                if figure is not None:
                    self._log_figure(run_id, figure, path)
        return [path for path, figure in drawn.items() if figure is not None]

    def _log_migrations(self, run_id: str, story: Story | None) -> None:
        if story is None or not story.migrations:
            return
        # Imported here, because masters import this room and draw nothing.
        from elastrec.platform.history.scaling_figures import MIGRATIONS_PICTURE, migrations

        if (picture := migrations(story.migrations)) is not None:
            with self._explained(f"write the pictures of run {run_id}"):
                self._log_figure(run_id, picture, MIGRATIONS_PICTURE)

    def _log_report(self, run_id: str, story: Story | None) -> None:
        from elastrec.platform.history.report import REPORT_FILE

        try:
            text = self.report(run_id, story)
        except HistoryError as error:
            # A run that cannot be read as a job is closed nevertheless.
            _log.warning("report_not_written", run_id=run_id, error=str(error))
            return
        with self._explained(f"write the report of run {run_id}"):
            self._log_text(run_id, text, REPORT_FILE)

    def report(self, run_id: str, story: Story | None = None) -> str:
        """The run's report, a self-contained HTML page.

        Raises:
            HistoryError: MLflow refuses, or the run was not written by `start_run`.
        """
        from elastrec.platform.history.decisions import Decisions
        from elastrec.platform.history.report import SERIES, render

        with self._explained(f"read run {run_id}"):
            run = self._client.get_run(run_id)
        kept = Decisions(self._tracking_uri, self._experiment)
        decisions = kept.decisions(run_id)
        return render(
            read_record(run),
            run.data.tags,
            run.data.params,
            self._champion_of(run),
            {name: self.series(run_id, name) for name in SERIES if name in run.data.metrics},
            decisions,
            story,
            kept.throughput_picture(run_id, decisions),
            kept.memory_picture(run_id, decisions),
            kept.plan_pictures(run_id, decisions),
            kept.gains_picture(run_id) if decisions else "",
            run_url=self._page(run.info.experiment_id, run_id),
        )

    def _champion_of(self, run: Any) -> tuple[JobRecord, Mapping[str, str]] | None:
        """Record and parameters of the champion's run with which a job was compared; None if unknown."""
        champion_run = run.data.tags.get(TAG_CHAMPION_RUN)
        if not champion_run:
            return None
        try:
            with self._explained(f"read run {champion_run}"):
                found = self._client.get_run(champion_run)
            return read_record(found), found.data.params
        except HistoryError as error:
            # Its run may have been deleted.
            _log.warning("champion_not_read", run_id=run.info.run_id, champion_run=champion_run, error=str(error))
            return None
