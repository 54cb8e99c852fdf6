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

import msgspec
import structlog
import xxhash

from elastrec.platform.history import metric_names as names
from elastrec.platform.history.delivery.sink import POINTS_PER_CALL
from elastrec.platform.history.model_registry import compared_figures, logged_model_id
from elastrec.platform.history.points import Point, last_step
from elastrec.platform.history.records import (
    TAG_CHAMPION_RUN,
    TAG_DESCRIBED,
    TAG_EARLIER_TERMS,
    TAG_GATE,
    TAG_GATE_REASON,
    TAG_JOB_ID,
    TAG_PHASE,
    TAG_REASON,
    TAG_SHAPE_CHANGES,
    TAG_SIZES,
    dataset_name,
    describe,
    note,
    run_name,
    tag_text,
)
from elastrec.platform.history.run_pages import RunPages
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
_DESCRIBE_TRIES = 8
_SCORE_TRIES = 4
_SCORE_PAUSE_SECONDS = 0.1


class History(RunPages):
    """Reads and writes one experiment. mlflow is imported, and the server is connected, at the first use.

    Every method raises HistoryError if the server cannot be reached or refuses.

    Args:
        tracking_uri: `http(s)://...`, or `sqlite:///file`.
        experiment: name; created when it does not exist.
        ui_url: address of MLflow for browsers, if that is not the tracking URI.
    """

    def start_run(
        self, prepared: Prepared, allocation: Allocation, *, begins: bool = False, earlier_terms: int | None = None
    ) -> str:
        """Starts the run of a job: requested and granted sizes, parameters, similarity tags, data sets, the job file.

        Idempotent by job id: returns the same run while it is open or after it succeeded; makes a new attempt after it
        failed or was stopped. Of two concurrent callers, the later one deletes its run and uses the earlier one. An
        existing run gets the caller's `run_tags`, because another task than before may wait for the job, or none.

        Args:
            begins: whether the job will train its rows from the first one. A run that succeeded, or an open one with
                figures, is then of another training, and a new attempt is made.
            earlier_terms: identifies the training among those of the job (see `LaunchRequest.earlier_terms`); runs of
                the others are not used. None: unknown.
        """
        job = job_from_json(prepared.job_json)
        of_training = {} if earlier_terms is None else {TAG_EARLIER_TERMS: str(earlier_terms)}
        run = self._live_run(prepared.job_id, begins, earlier_terms)
        if run is None:
            with self._explained(f"create the run of job {prepared.job_id}"):
                attempt = len(self._runs(prepared.job_id)) + 1
                name = run_name(job.metadata.name, prepared.interval, attempt)
                tags = {
                    TAG_JOB_ID: prepared.job_id,
                    "elastrec.attempt": str(attempt),
                    "mlflow.source.name": "elastrec",
                    "mlflow.user": _user(),
                    **of_training,
                }
                created = self._client.create_run(self._experiment_id, run_name=name, tags=tags)
                # MLflow has no unique tags, so the earlier of two concurrent runs stays.
                run = self._live_run(prepared.job_id, begins, earlier_terms) or created
                if run.info.run_id != created.info.run_id:
                    self._client.delete_run(created.info.run_id)
        run_id = str(run.info.run_id)
        self._retag(run, of_training)
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

            # An earlier caller may have been interrupted after them, with other sizes; MLflow does not change them.
            written = self._client.get_run(run_id).data.params
            params = [Param(*pair) for pair in description.params.items() if pair[0] not in written]
            self._client.log_batch(run_id, params=params)
            self._client.log_batch(run_id, tags=[RunTag(*pair) for pair in description.tags.items()])
            self._client.set_tag(run_id, "mlflow.note.content", note(prepared))
            self._log_text(run_id, json.dumps(json.loads(masked(prepared.job_json)), indent=2), "job.json")
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
            tags.append(RunTag(TAG_REASON, tag_text(reason)))
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

        A run whose artifacts cannot be written, because their store is full or refuses, is closed without them, and one
        whose pictures cannot be drawn without those.

        Args:
            reason: why it failed, with the traceback if there is one.
            story: events and where the time went, stored as `explanation.txt`.
        """
        from mlflow.entities import RunTag

        if not phase.is_final:
            raise HistoryError(f"phase: {phase.value} is not allowed; allowed: Succeeded, Failed, Stopped")
        self.set_phase(run_id, phase, reason)
        if story is not None and story.sizes is not None:
            with self._explained(f"write the last sizes of run {run_id}"):
                sizes = msgspec.json.encode(story.sizes).decode()
                tags = [RunTag(TAG_SIZES, sizes), RunTag(TAG_SHAPE_CHANGES, str(story.shape_changes))]
                self._client.log_batch(run_id, tags=tags)
        self._log_artifacts(run_id, reason, story)
        with self._explained(f"close run {run_id}"):
            self._client.set_terminated(run_id, status=_RUN_STATUS[phase])
        _log.info("run finished", run_id=run_id, phase=phase.value)

    def log_gate(self, run_id: str, decision: GateDecision, champion_run: str = "") -> None:
        """Writes the scores of candidate and champion on the same rows, and the decision.

        The candidate's scores are also metrics of its logged model. Their step is that of the run's last point.

        Args:
            champion_run: the run that trained the champion; empty if there is none.
        """
        with self._explained(f"read run {run_id}"):
            step = last_step(self._client.get_run(run_id).data.metrics)
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
            self._client.set_tag(run_id, TAG_GATE_REASON, tag_text(decision.reason))
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
