"""The champion that a model is compared with, while other jobs register models in the same MLflow database."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from mlflow import MlflowClient

from elastrec.platform.clusters.local.config import LocalConfig
from elastrec.platform.clusters.pods import EndReason, PodSize, PodSpec, PodStatus
from elastrec.platform.history import History, ModelRegistry
from elastrec.platform.jobs.ending import evaluation
from elastrec.platform.jobs.ending.evaluation import (
    CHAMPION_LABEL,
    EvaluatorState,
    evaluate_and_gate,
    evaluator_pod,
    evaluator_state,
    gate_decision,
    register,
    result,
    start_evaluator,
)
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.jobs.types import GateDecision, Interval, Launched, ModelScore, Prepared
from elastrec.platform.jobs.watching.job_pods import remove_job
from elastrec.platform.jobs.watching.past import result_of
from elastrec.platform.master.pods.launch import evaluator_job, pod_name
from elastrec.platform.master.reporting.unsent_metrics import write_result
from elastrec.platform.specs.errors import ChampionChangedError, HistoryError, JobFailedError
from elastrec.platform.specs.metrics import Phase, Role, TrainingMetrics
from elastrec.platform.specs.text.loading import job_from_json
from elastrec.platform.transport.messages.export import (
    EXIT_HISTORY,
    EXPORT_FILE,
    EvaluationResult,
    ExportRequest,
    ExportResult,
    result_line,
)
from tests.operators.steps import ALLOCATION, PREPARED
from tests.platform.master.fakes import FakeCluster, FakeLauncher

JOB, JOB_ID, MODEL, EXPERIMENT = "clicks", "clicks-1", "click-model", "daily"
CANDIDATE_URI = "file:///models/candidate"


class Evaluators(FakeLauncher):
    """A cluster whose evaluators end at once, with AUC 0.8 of the new model and 0.7 of the champion."""

    exported = CANDIDATE_URI
    only_label: float | None = None

    def submit(self, first: PodSpec) -> PodStatus:
        self.remove(first.job)
        created = super().submit(first)
        has_champion = bool(first.labels[CHAMPION_LABEL])
        scores = [EvaluationResult(samples=9, auc=auc, normalized_entropy=0.9, log_loss=0.5) for auc in (0.8, 0.7)]
        if self.only_label is not None:
            undefined = {"auc": None, "normalized_entropy": None, "only_label": self.only_label}
            scores = [msgspec.structs.replace(score, **undefined) for score in scores]
        done = ExportResult(
            model_uri=self.exported, checked_rows=1, largest_difference=0.0, challenger=scores[0],
            champion=scores[1] if has_champion else None,
        )  # fmt: skip
        self.cluster.logs = lambda name, **options: iter([result_line(done)])  # type: ignore[method-assign]
        self.cluster.end(created.name, EndReason.COMPLETED, 0)
        return created

    @property
    def scored(self) -> str:
        """The version that the present evaluator has scored."""
        pod = self.find(evaluator_job(JOB_ID))
        assert pod is not None
        return pod.labels[CHAMPION_LABEL]


@pytest.fixture
def launcher() -> Evaluators:
    return Evaluators(FakeCluster())


@pytest.fixture
def platform(launcher: Evaluators, tmp_path: Path) -> Platform:
    config = LocalConfig(address="127.0.0.1:1", token="t")
    return Platform(launcher, config, f"sqlite:///{tmp_path}/mlflow.db", str(tmp_path), tmp_path)


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    job = {
        "apiVersion": "elastrec.io/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": JOB},
        "spec": {
            "model": {"architecture": "dlrm"},
            "data": {"path": "/data", "sparse": [{"name": "user"}]},
            "checkpoint": {"store": str(tmp_path / "store")},
            "history": {"experiment": EXPERIMENT, "registered_model": MODEL},
        },
    }
    for name in ("training", "evaluation"):
        (tmp_path / name).write_text("{}")
    metrics = TrainingMetrics(job=JOB_ID, phase=Phase.SUCCEEDED, checkpoint="file:///record", samples_trained=10)
    write_result(str(tmp_path / "store"), JOB, JOB_ID, metrics)
    return msgspec.structs.replace(
        PREPARED,
        job_json=msgspec.json.encode(job).decode(),
        training_manifest=str(tmp_path / "training"),
        evaluation_manifest=str(tmp_path / "evaluation"),
    )


@pytest.fixture
def launched(platform: Platform, prepared: Prepared) -> Launched:
    run_id = History(platform.tracking_uri, EXPERIMENT).start_run(prepared, ALLOCATION)
    return Launched(job_id=JOB_ID, master_pod="", run_id=run_id, run_url="", allocation=ALLOCATION)


def crown(platform: Platform, prepared: Prepared, number: int, interval: Interval | None = None) -> str:
    """Another job registers a model that becomes champion.

    Args:
        interval: of its rows; None: that of the job.
    """
    registry = ModelRegistry(platform.tracking_uri, EXPERIMENT)
    uri = f"file:///models/{number}"
    decision = GateDecision(passed=True, reason="better", candidate=ModelScore(0.7, 0.9, 9), model_uri=uri)
    other = msgspec.structs.replace(prepared, job_id=f"other-{number}", interval=interval or prepared.interval)
    run_id = History(platform.tracking_uri, EXPERIMENT).start_run(other, ALLOCATION)
    version = registry.register(MODEL, uri, run_id, decision)
    champion = registry.champion(MODEL)
    assert registry.promote(MODEL, version, champion.version if champion else "") is None
    return version


def test_a_request_with_a_password_is_a_secret_of_the_evaluators_pod(prepared: Prepared) -> None:
    job = job_from_json(prepared.job_json)
    plain = ExportRequest(job_json=prepared.job_json, job_id=JOB_ID, store_uri="", record_uri="")
    hidden = msgspec.structs.replace(plain, tracking_uri="https://user:s3cret@mlflow")
    assert (set(evaluator_pod(job, plain).files), evaluator_pod(job, plain).secrets) == ({EXPORT_FILE}, {})
    pod = evaluator_pod(job, hidden)
    assert not pod.files and "s3cret" in pod.secrets[EXPORT_FILE]


def test_a_model_is_compared_again_if_the_champion_changes_before_the_gate(
    platform: Platform, launcher: Evaluators, prepared: Prepared, launched: Launched
) -> None:
    crown(platform, prepared, 1)
    start_evaluator(platform, prepared, launched)
    assert launcher.scored == "1"
    crown(platform, prepared, 2)
    with pytest.raises(ChampionChangedError, match=r"compared with version 1, and the champion is version 2"):
        gate_decision(platform, prepared, launched)
    start_evaluator(platform, prepared, launched)
    assert launcher.scored == "2"
    assert gate_decision(platform, prepared, launched).champion_version == "2"


def test_a_caller_that_waits_compares_again_by_itself(
    platform: Platform, launcher: Evaluators, prepared: Prepared, launched: Launched
) -> None:
    start_evaluator(platform, prepared, launched)
    assert launcher.scored == ""
    crown(platform, prepared, 1)
    assert evaluate_and_gate(platform, prepared, launched).champion_version == launcher.scored == "1"


@pytest.mark.parametrize("has_champion", [False, True])
def test_a_model_whose_evaluation_rows_have_one_label_is_registered_with_its_log_loss_and_does_not_become_champion(
    platform: Platform, launcher: Evaluators, prepared: Prepared, launched: Launched, has_champion: bool
) -> None:
    before = crown(platform, prepared, 1) if has_champion else ""
    launcher.only_label = 0.0
    decision = evaluate_and_gate(platform, prepared, launched)
    assert not decision.passed and "AUC and normalised entropy are not defined on the 9 evaluation" in decision.reason
    registered = register(platform, prepared, launched, decision)
    assert (registered.is_champion, registered.model_uri) == (False, CANDIDATE_URI) and registered.version != before
    champion = ModelRegistry(platform.tracking_uri, EXPERIMENT).champion(MODEL)
    assert (champion.version if champion else "") == before
    run = MlflowClient(platform.tracking_uri).get_run(launched.run_id).data
    assert run.metrics["evaluation/log_loss"] == 0.5 and "evaluation/auc" not in run.metrics
    assert (run.tags["elastrec.gate"], run.tags["elastrec.gate_reason"]) == ("refused", decision.reason)
    outcome = result(prepared, launched, TrainingMetrics(job=JOB_ID, phase=Phase.SUCCEEDED), decision, registered)
    assert (outcome.auc, outcome.log_loss, outcome.gate) == (None, 0.5, decision.reason)


def test_an_evaluator_that_has_scored_the_champion_is_not_started_again(
    platform: Platform, launcher: Evaluators, prepared: Prepared, launched: Launched
) -> None:
    crown(platform, prepared, 1)
    start_evaluator(platform, prepared, launched)
    first = launcher.find(evaluator_job(JOB_ID))
    start_evaluator(platform, prepared, launched)
    assert launcher.find(evaluator_job(JOB_ID)) == first


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        (EndReason.NODE_LOST, EvaluatorState.LOST),
        (EndReason.PREEMPTED, EvaluatorState.LOST),
        (EndReason.ERROR, EvaluatorState.INTERRUPTED),
        (EndReason.BAD_INPUT, EvaluatorState.FAILED),
        (EndReason.OUT_OF_MEMORY, EvaluatorState.FAILED),
    ],
)
def test_an_evaluator_whose_end_another_one_may_not_have_is_started_again(
    platform: Platform,
    launcher: Evaluators,
    prepared: Prepared,
    launched: Launched,
    reason: EndReason,
    state: EvaluatorState,
) -> None:
    request = ExportRequest(job_json=prepared.job_json, job_id=JOB_ID, store_uri="", record_uri="")
    lost = FakeLauncher.submit(launcher, evaluator_pod(job_from_json(prepared.job_json), request))
    launcher.cluster.end(lost.name, reason)
    assert evaluator_state(platform, JOB_ID)[0] is state
    start_evaluator(platform, prepared, launched)
    started = launcher.find(evaluator_job(JOB_ID))
    assert started is not None and (started.uid != lost.uid) == (state is not EvaluatorState.FAILED)


@pytest.mark.parametrize(
    ("reason", "code", "state", "words"),
    [
        (EndReason.NODE_LOST, 137, "lost", "was lost"),
        (EndReason.ERROR, 1, "interrupted", "was interrupted"),
        (EndReason.ERROR, EXIT_HISTORY, "could not write to MLflow", "had no MLflow"),
    ],
    ids=["lost", "interrupted", "history"],
)
@pytest.mark.parametrize("losses", [1, 3, 4])
def test_a_caller_that_waits_replaces_evaluators_whose_end_others_may_not_have(
    platform: Platform,
    launcher: Evaluators,
    prepared: Prepared,
    launched: Launched,
    monkeypatch: pytest.MonkeyPatch,
    losses: int,
    reason: EndReason,
    code: int,
    state: str,
    words: str,
) -> None:
    submitted: list[str] = []

    def submit(first: PodSpec) -> PodStatus:
        submitted.append(first.name)
        if len(submitted) > losses:
            return Evaluators.submit(launcher, first)
        launcher.remove(first.job)
        lost = FakeLauncher.submit(launcher, first)
        launcher.cluster.end(lost.name, reason, code)
        return lost

    monkeypatch.setattr(launcher, "submit", submit)
    said: list[str] = []
    if losses > 3:
        with pytest.raises((JobFailedError, HistoryError), match=f"the evaluator of job {JOB_ID} (is )?{state}"):
            evaluate_and_gate(platform, prepared, launched, said.append)
        assert len(submitted) == 4
    else:
        assert evaluate_and_gate(platform, prepared, launched, said.append).passed
        assert len(submitted) == losses + 1
    assert len(said) == min(losses, 3) and said[0].startswith(f"the evaluator {words}, starting another one")


def test_a_caller_that_waits_does_not_start_the_evaluator_of_a_job_that_was_stopped(
    platform: Platform,
    launcher: Evaluators,
    prepared: Prepared,
    launched: Launched,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submitted: list[str] = []

    def submit(first: PodSpec) -> PodStatus:
        submitted.append(first.name)
        created = FakeLauncher.submit(launcher, first)
        launcher.remove(first.job)
        return created

    monkeypatch.setattr(launcher, "submit", submit)
    with pytest.raises(JobFailedError, match="the evaluator pod is gone"):
        evaluate_and_gate(platform, prepared, launched)
    assert len(submitted) == 1


@pytest.mark.parametrize("waits", [False, True], ids=["operator", "run"])
def test_a_job_that_is_stopped_while_its_evaluator_is_about_to_start_has_none(
    platform: Platform,
    launcher: Evaluators,
    prepared: Prepared,
    launched: Launched,
    monkeypatch: pytest.MonkeyPatch,
    waits: bool,
) -> None:
    name = pod_name(JOB_ID, Role.MASTER)
    launcher.cluster.create(PodSpec(name=name, job=JOB_ID, role=Role.MASTER, command=("x",), size=PodSize(1, 1)))
    launcher.cluster.end(name, EndReason.COMPLETED, 0)
    stops = iter([True])

    def stopped_meanwhile(*values: object) -> TrainingMetrics:
        found = result_of(platform, prepared)
        if next(stops, False):
            remove_job(platform, JOB_ID)
        return found

    monkeypatch.setattr(evaluation, "result_of", stopped_meanwhile)
    with pytest.raises(
        JobFailedError, match=r"was stopped before its model was evaluated\..* `elastrec resume clicks-1`"
    ):
        (evaluate_and_gate if waits else start_evaluator)(platform, prepared, launched)
    assert launcher.find(evaluator_job(JOB_ID)) is None
    # The next call publishes it.
    assert evaluate_and_gate(platform, prepared, launched).passed


def test_registering_again_does_not_take_the_alias_from_a_later_champion(
    platform: Platform, prepared: Prepared, launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    crown(platform, prepared, 1)
    decision = evaluate_and_gate(platform, prepared, launched)
    registry = ModelRegistry(platform.tracking_uri, EXPERIMENT)
    for _ in range(2):
        registered = register(platform, prepared, launched, decision)
        assert (registered.version, registered.is_champion, registered.note) == ("2", True, "")
    later = crown(platform, prepared, 3)
    cleared = register(platform, prepared, launched, decision)
    assert (cleared.version, cleared.is_champion) == ("2", False)
    assert cleared.note.startswith("version 3 has become champion since this model was compared with version 1")
    champion = registry.champion(MODEL)
    assert champion is not None and champion.version == later


@pytest.mark.parametrize("is_removed", [True, False])
def test_a_job_that_is_published_again_after_an_interruption_keeps_its_version_and_its_comparison(
    platform: Platform, launcher: Evaluators, prepared: Prepared, launched: Launched, is_removed: bool
) -> None:
    """The caller was ended after the model was registered: with the job by Ctrl-C, or alone by a kill."""
    before = crown(platform, prepared, 1)
    decision = evaluate_and_gate(platform, prepared, launched)
    first = register(platform, prepared, launched, decision)
    evaluator = launcher.find(evaluator_job(JOB_ID))
    if is_removed:
        launcher.remove(evaluator_job(JOB_ID))
        launcher.exported = "file:///models/exported-again"
    again = evaluate_and_gate(platform, prepared, launched)
    assert (again.passed, again.reason, again.champion_version) == (True, decision.reason, first.version)
    if not is_removed:
        assert launcher.find(evaluator_job(JOB_ID)) == evaluator
    second = register(platform, prepared, launched, again)
    assert (second.version, second.is_champion) == (first.version, True) and first.version != before
    client = MlflowClient(platform.tracking_uri)
    (version,) = client.search_model_versions(f"run_id = '{launched.run_id}'")
    assert version.source == CANDIDATE_URI and version.tags["elastrec.gate_reason"] == decision.reason
    run = client.get_run(launched.run_id).data
    assert run.metrics["evaluation/auc_gain"] == pytest.approx(0.1)
    assert run.tags["elastrec.gate_reason"] == decision.reason


def test_a_model_that_is_compared_with_a_later_champion_keeps_its_version(
    platform: Platform, launcher: Evaluators, prepared: Prepared, launched: Launched
) -> None:
    crown(platform, prepared, 1)
    version = register(platform, prepared, launched, evaluate_and_gate(platform, prepared, launched)).version
    later = crown(platform, prepared, 2)
    launcher.exported = "file:///models/exported-again"
    decision = evaluate_and_gate(platform, prepared, launched)
    assert decision.champion_version == launcher.scored == later
    registered = register(platform, prepared, launched, decision)
    assert (registered.version, registered.is_champion) == (version, True)


@pytest.mark.parametrize(("end", "passed"), [("2026-01-03T00:00:00+01:00", False), ("2026-01-02T01:00:00+01:00", True)])
def test_the_model_of_an_older_day_that_is_not_better_does_not_replace_the_champion_of_a_later_day(
    platform: Platform, prepared: Prepared, launched: Launched, end: str, passed: bool
) -> None:
    """Both have the same normalised entropy. The job was trained until 2026-01-02T00:00:00+00:00."""
    later = Interval("2026-01-01T00:00:00+01:00", end, "2026-01-05T00:00:00+01:00")
    before = crown(platform, prepared, 1, later)
    registered = register(platform, prepared, launched, evaluate_and_gate(platform, prepared, launched))
    assert registered.is_champion is passed
    champion = ModelRegistry(platform.tracking_uri, EXPERIMENT).champion(MODEL)
    assert champion is not None and champion.version == (registered.version if passed else before)
