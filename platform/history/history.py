"""History: the job records in MLflow, written at a job's start and end.

Warm start, scaling and commands about past jobs read them.
"""

from __future__ import annotations

import getpass
import json
import os
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import structlog
import xxhash

from elastrec.platform.history import figures
from elastrec.platform.history import metric_names as names
from elastrec.platform.history.connection import Connection
from elastrec.platform.history.model_registry import compared_figures, logged_model_id
from elastrec.platform.history.points import Point
from elastrec.platform.history.records import (
    TAG_CHAMPION_RUN,
    TAG_DESCRIBED,
    TAG_GATE,
    TAG_GATE_REASON,
    TAG_JOB_ID,
    TAG_PHASE,
    TAG_REASON,
    JobFilter,
    JobRecord,
    dataset_name,
    describe,
    note,
    read_record,
    run_name,
)
from elastrec.platform.history.sink import POINTS_PER_CALL
from elastrec.platform.specs.errors import CollisionError, DataError, HistoryError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.specs.text.loading import job_from_json
from elastrec.platform.specs.text.uris import masked

if TYPE_CHECKING:
    # At run time, jobs import history.
    from elastrec.platform.history.report import Story
    from elastrec.platform.jobs.types import Allocation, GateDecision, ModelScore, Prepared

_log = structlog.get_logger(__name__)

_RUN_STATUS = {Phase.SUCCEEDED: "FINISHED", Phase.FAILED: "FAILED", Phase.STOPPED: "KILLED"}
_LONGEST_REASON = 4000
_DESCRIBE_TRIES = 8
_SCORE_TRIES = 4
_SCORE_PAUSE_SECONDS = 0.1


class History(Connection):
    """Reads and writes one experiment. mlflow is imported, and the server is connected, at the first use.

    Every method raises HistoryError if the server cannot be reached or refuses.

    Args:
        tracking_uri: `http(s)://...`, or `sqlite:///file`.
        experiment: name; created when it does not exist.
        ui_url: address of MLflow for browsers, if that is not the tracking URI.
    """

    def start_run(self, prepared: Prepared, allocation: Allocation, *, begins: bool = False) -> str:
        """Starts the run of a job: requested and granted sizes, parameters, similarity tags, data sets, the job file.

        Idempotent by job id: returns the same run while it is open or after it succeeded; makes a new attempt after it
        failed or was stopped. Of two concurrent callers, the later one deletes its run and uses the earlier one. An
        existing run gets the caller's `run_tags`, because another task than before may wait for the job, or none.

        Args:
            begins: whether the job will train its rows from the first one. A run that succeeded then contains the
                figures of another training, and a new attempt is made.
        """
        job = job_from_json(prepared.job_json)
        run = self._live_run(prepared.job_id, begins)
        if run is None:
            with self._explained(f"create the run of job {prepared.job_id}"):
                attempt = len(self._runs(prepared.job_id)) + 1
                name = run_name(job.metadata.name, prepared.interval, attempt)
                tags = {
                    TAG_JOB_ID: prepared.job_id,
                    "elastrec.attempt": str(attempt),
                    "mlflow.source.name": "elastrec",
                    "mlflow.user": _user(),
                }
                created = self._client.create_run(self._experiment_id, run_name=name, tags=tags)
                # MLflow has no unique tags, so the earlier of two concurrent runs stays.
                run = self._live_run(prepared.job_id, begins) or created
                if run.info.run_id != created.info.run_id:
                    self._client.delete_run(created.info.run_id)
        run_id = str(run.info.run_id)
        if run.data.tags.get(TAG_DESCRIBED) == "true":
            self._retag(run, prepared.run_tags)
            return run_id
        for tries_left in reversed(range(_DESCRIBE_TRIES)):
            try:
                self._describe(run_id, job, prepared, allocation)
                break
            except CollisionError:
                # If two callers write the same new key at once, MLflow fails one of them, whose retry finds the key.
                if not tries_left:
                    raise
        _log.info("run started", job_id=prepared.job_id, run_id=run_id, experiment=self._experiment)
        return run_id

    def _retag(self, run: Any, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag
        from mlflow.exceptions import MlflowException

        run_id, before = run.info.run_id, run.data.tags
        with self._explained(f"write tags of run {run_id}"):
            if changed := [RunTag(key, value) for key, value in tags.items() if value and before.get(key) != value]:
                self._client.log_batch(run_id, tags=changed)
            for key in [key for key, value in tags.items() if not value and key in before]:
                try:
                    self._client.delete_tag(run_id, key)
                except MlflowException as error:
                    # Another caller may have removed it meanwhile.
                    if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                        raise

    def _describe(self, run_id: str, job: TrainingJob, prepared: Prepared, allocation: Allocation) -> None:
        description = describe(job, prepared, allocation)
        with self._explained(f"describe job {prepared.job_id}"):
            from mlflow.entities import Param, RunTag

            self._client.log_batch(run_id, params=[Param(*pair) for pair in description.params.items()])
            self._client.log_batch(run_id, tags=[RunTag(*pair) for pair in description.tags.items()])
            self._client.set_tag(run_id, "mlflow.note.content", note(prepared))
            self._client.log_text(run_id, json.dumps(json.loads(masked(prepared.job_json)), indent=2), "job.json")
        path = job.spec.data.path
        for context, manifest, rows in (
            ("training", prepared.training_manifest, prepared.training_rows),
            ("evaluation", prepared.evaluation_manifest, prepared.evaluation_rows),
        ):
            if manifest:
                name = dataset_name(path, prepared.interval, context)
                self.log_dataset(run_id, context, name, path, manifest, rows)
        with self._explained(f"describe job {prepared.job_id}"):
            # Written last, so that the next caller describes a run without it again.
            self._client.set_tag(run_id, TAG_DESCRIBED, "true")

    def _runs(self, job_id: str) -> list[Any]:
        with self._explained(f"look for job {job_id}"):
            return list(
                self._client.search_runs(
                    [self._experiment_id], f"tags.`{TAG_JOB_ID}` = '{job_id}'", order_by=["attributes.start_time ASC"]
                )
            )

    def _live_run(self, job_id: str, begins: bool) -> Any | None:
        """The job's earliest open run, or its latest successful one unless the job begins anew."""
        runs = self._runs(job_id)
        opened = [run for run in runs if run.info.status in ("RUNNING", "SCHEDULED")]
        opened.sort(key=lambda run: (run.info.start_time, run.info.run_id))
        succeeded = [run for run in runs if run.info.status == "FINISHED" and not begins]
        return (opened[:1] or succeeded[-1:] or [None])[0]

    def open_run(self, job_id: str) -> str:
        """The job's open run; empty if there is none."""
        opened = [run for run in self._runs(job_id) if run.info.status in ("RUNNING", "SCHEDULED")]
        return str(opened[0].info.run_id) if opened else ""

    def present_run(self, run_id: str) -> str:
        """The run itself; if somebody has deleted it, the job's open run in the same experiment, or an empty text."""
        from mlflow.exceptions import MlflowException

        with self._explained(f"read run {run_id}"):
            try:
                run = self._client.get_run(run_id)
            except MlflowException as error:
                if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                    return ""
                raise
            if run.info.lifecycle_stage == "active":
                return run_id
            same_job = f"tags.`{TAG_JOB_ID}` = '{run.data.tags.get(TAG_JOB_ID, '')}' AND attributes.status = 'RUNNING'"
            opened = self._client.search_runs([run.info.experiment_id], same_job, max_results=1)
        return str(opened[0].info.run_id) if opened else ""

    def log_series(self, run_id: str, points: Iterable[Point], model_id: str | None = None) -> None:
        """Writes points immediately, in as few calls as MLflow allows. A running job uses a Reporter instead.

        Args:
            model_id: logged model of the run, for which the metrics are recorded as well.
        """
        from mlflow.entities import Metric

        metrics = [
            Metric(point.name, point.value, int(point.unix_seconds * 1000), point.step, model_id=model_id)
            for point in points
        ]
        with self._explained(f"write metrics of run {run_id}"):
            for first in range(0, len(metrics), POINTS_PER_CALL):
                self._client.log_batch(run_id, metrics=metrics[first : first + POINTS_PER_CALL])

    def log_dataset(self, run_id: str, context: str, name: str, path: str, manifest_uri: str, rows: int) -> None:
        """Records a data set as the run's input: log, URI and digest of its manifest, row count; never its rows.

        Args:
            context: `training` or `evaluation`.
            name: for people.
            path: of the log.
        """
        from mlflow.entities import Dataset, DatasetInput, InputTag

        from elastrec.platform.data.files import read_bytes

        try:
            digest = xxhash.xxh3_64_hexdigest(read_bytes(manifest_uri))
        except DataError as error:
            raise HistoryError(f"the manifest of the {context} data cannot be read: {error}") from error
        dataset = Dataset(
            name=name,
            digest=digest,
            source_type="elastrec_manifest",
            source=json.dumps({"uri": masked(path), "manifest": masked(manifest_uri)}),
            profile=json.dumps({"num_rows": rows}),
        )
        with self._explained(f"write the {context} data set of run {run_id}"):
            self._client.log_inputs(run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", context)])])

    def set_phase(self, run_id: str, phase: Phase, reason: str = "") -> None:
        """Writes the phase of the job, as tags; `finish_run` closes the run."""
        from mlflow.entities import RunTag

        tags = [RunTag(TAG_PHASE, phase.value)]
        if reason:
            tags.append(RunTag(TAG_REASON, masked(reason)[:_LONGEST_REASON]))
        with self._explained(f"write the phase of run {run_id}"):
            self._client.log_batch(run_id, tags=tags)

    def finish_run(
        self,
        run_id: str,
        phase: Phase,
        reason: str = "",
        story: Story | None = None,
    ) -> None:
        """Draws the pictures and closes the run with its final phase. Idempotent.

        A run whose artifacts cannot be written, because their store is full or refuses, is closed without them.

        Args:
            reason: why it failed, with the traceback if there is one.
            story: events and where the time went, stored as `explanation.txt`.
        """
        if not phase.is_final:
            raise HistoryError(f"phase: {phase.value} is not allowed; allowed: Succeeded, Failed, Stopped")
        self.set_phase(run_id, phase, reason)
        try:
            self._log_artifacts(run_id, reason, story)
        except HistoryError as error:
            _log.warning("artifacts_not_written", run_id=run_id, error=str(error))
        with self._explained(f"close run {run_id}"):
            self._client.set_terminated(run_id, status=_RUN_STATUS[phase])
        _log.info("run finished", run_id=run_id, phase=phase.value)

    def _log_artifacts(self, run_id: str, reason: str, story: Story | None) -> None:
        self.log_figures(run_id)
        with self._explained(f"write the artifacts of run {run_id}"):
            if reason:
                self._client.log_text(run_id, masked(reason), "reason.txt")
            if story is not None:
                self._client.log_text(run_id, masked(story.text), "explanation.txt")
                self._log_migrations(run_id, story)
        self._log_report(run_id, story)

    def log_figures(self, run_id: str) -> list[str]:
        """Learning curve, calibration and the parts of a step, from the run's own series; returns their paths."""
        with self._explained(f"read run {run_id}"):
            latest: Mapping[str, float] = self._client.get_run(run_id).data.metrics
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
                    self._client.log_figure(run_id, figure, path)
        return [path for path, figure in drawn.items() if figure is not None]

    def _log_migrations(self, run_id: str, story: Story) -> None:
        if not story.migrations:
            return
        # Imported here, because masters import this room and draw nothing.
        from elastrec.platform.history.scaling_figures import MIGRATIONS_PICTURE, migrations

        if (picture := migrations(story.migrations)) is not None:
            self._client.log_figure(run_id, picture, MIGRATIONS_PICTURE)

    def _log_report(self, run_id: str, story: Story | None) -> None:
        from elastrec.platform.history.report import REPORT_FILE

        try:
            text = self.report(run_id, story)
        except HistoryError as error:
            # A run that cannot be read as a job is closed nevertheless.
            _log.warning("report_not_written", run_id=run_id, error=str(error))
            return
        with self._explained(f"write the report of run {run_id}"):
            self._client.log_text(run_id, text, REPORT_FILE)

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

    def series(self, run_id: str, name: str) -> list[tuple[int, float]]:
        """(step, value) of one metric, by step; the last value if a step was measured twice."""
        with self._explained(f"read {name} of run {run_id}"):
            points = self._client.get_metric_history(run_id, name)
        return sorted({metric.step: metric.value for metric in sorted(points, key=lambda m: m.timestamp)}.items())

    def job_records(self, wanted: JobFilter | None = None, limit: int = 200) -> list[JobRecord]:
        """Jobs of this experiment, the newest first.

        A job's run that cannot be read (incomplete, or changed by hand) is left out and named in the log, because one
        bad run must not prevent the use of all others.
        """
        found: dict[str, Any] = {}
        for expression in (wanted or JobFilter()).expressions():
            token = None
            with self._explained("search job records"):
                while len(found) < limit or token is None:
                    page = self._client.search_runs(
                        [self._experiment_id],
                        expression,
                        max_results=min(limit, 1000),
                        order_by=["attributes.start_time DESC"],
                        page_token=token,
                    )
                    found |= {run.info.run_id: run for run in page}
                    token = page.token
                    if not token:
                        break
        records = []
        for run in found.values():
            try:
                records.append(read_record(run))
            except HistoryError as error:
                _log.warning("run_left_out", run_id=run.info.run_id, reason=str(error))
        records.sort(key=lambda record: record.started_unix_seconds, reverse=True)
        return records[:limit]

    def record(self, run_id: str) -> JobRecord:
        """The job of a run."""
        with self._explained(f"read run {run_id}"):
            return read_record(self._client.get_run(run_id))

    def log_gate(self, run_id: str, decision: GateDecision, champion_run: str = "") -> None:
        """Writes the scores of candidate and champion on the same rows, and the decision.

        The candidate's scores are also metrics of its logged model. Their step is that of the run's last point.

        Args:
            champion_run: the run that trained the champion; empty if there is none.
        """
        with self._explained(f"read run {run_id}"):
            step = int(self._client.get_run(run_id).data.metrics.get(names.SAMPLES_TRAINED, 0))
        values = {
            _evaluation_name(decision.head, name): value for name, value in compared_figures(decision.candidate).items()
        }
        if decision.candidate.log_loss is not None:
            values[_evaluation_name(decision.head, "log_loss")] = decision.candidate.log_loss
        self._log_scores(run_id, values, step, logged_model_id(decision.model_uri))
        if decision.champion is not None:
            self._log_scores(run_id, _beside_champion(decision.candidate, decision.champion), step, None)
        with self._explained(f"write the gate's decision of run {run_id}"):
            self._client.set_tag(run_id, TAG_GATE, "passed" if decision.passed else "refused")
            self._client.set_tag(run_id, TAG_GATE_REASON, decision.reason)
            if champion_run:
                self._client.set_tag(run_id, TAG_CHAMPION_RUN, champion_run)

    def _log_scores(self, run_id: str, values: Mapping[str, float], step: int, model_id: str | None) -> None:
        for tries_left in reversed(range(_SCORE_TRIES)):
            now = time.time()
            try:
                self.log_series(run_id, [Point(name, value, step, now) for name, value in values.items()], model_id)
                return
            except CollisionError:
                # MLflow repeats a write after a conflict in an SQLite file, and then may refuse it as a duplicate of
                # its own first try. With a later timestamp, the same values are accepted.
                if not tries_left:
                    raise
                time.sleep(_SCORE_PAUSE_SECONDS)


def _beside_champion(candidate: ModelScore, champion: ModelScore) -> dict[str, float]:
    """The champion's figures on the candidate's rows, and how much better the candidate is; higher AUC is better."""
    old, new = compared_figures(champion), compared_figures(candidate)
    gains = {figure: (new[figure] - old[figure]) * (1 if figure == "auc" else -1) for figure in old if figure in new}
    return {
        **{names.named(names.CHAMPION_FIGURE, figure=figure): value for figure, value in old.items()},
        **{names.named(names.GAIN, figure=figure): gain for figure, gain in gains.items()},
    }


def _evaluation_name(head: str, figure: str) -> str:
    if head:
        return names.named(names.EVALUATION_HEAD, head=head, figure=figure)
    plain = {
        "auc": names.EVALUATION_AUC,
        "normalized_entropy": names.EVALUATION_NORMALIZED_ENTROPY,
        "log_loss": names.EVALUATION_LOG_LOSS,
    }
    return plain[figure]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # Containers often run with a user id that is not in the user database.
        return f"uid {os.getuid()}"
