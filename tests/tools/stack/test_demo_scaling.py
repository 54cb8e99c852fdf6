"""The demo's steps with a running job. Airflow's answers are fake; the killed process is real."""

from __future__ import annotations

import os
import subprocess

import pytest

from elastrec.platform.specs.metrics import MigrationMetrics, Phase, PodMetrics, Role, TrainingMetrics
from tools.stack import demo_scaling
from tools.stack.demo_scaling import Scaling

GROWN = {"migrated": True, "chosen": "1 → 3 workers", "outcome": "reached", "reason": "", "pause_seconds": 0.25}
REFUSED = {
    "migrated": False,
    "chosen": "1 → 3 workers",
    "outcome": "refused",
    "reason": "no room",
    "pause_seconds": None,
}


class Airflow:
    """Rounds with the states and the output that the test gives them."""

    def __init__(self) -> None:
        self.rounds: dict[str, str] = {"of an earlier demo": "success"}
        self.output: dict[str, object] | None = None
        self.reasons: dict[str, str] | None = {"job": "stays: 8 plans examined", "other": "grows"}

    @property
    def triggered(self) -> list[str]:
        return [run_id for run_id in self.rounds if run_id.startswith("round")]

    def trigger(self, dag_id, conf):
        assert (dag_id, conf) == ("auto_scaling", {})
        self.rounds[f"round-{len(self.rounds)}"] = "running"

    def runs(self, dag_id):
        return dict(self.rounds)

    def xcom(self, dag_id, run_id, task_id, key="return_value", map_index=-1):
        assert run_id != "of an earlier demo"
        if (task_id, key) == ("plan", "reasons"):
            return self.reasons
        assert (task_id, key, map_index) == ("migrate", "return_value", 0)
        return self.output


@pytest.fixture
def airflow():
    return Airflow()


@pytest.fixture
def said():
    return []


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(demo_scaling, "_PAUSE_SECONDS", 0.0)


def metrics(phase=Phase.TRAINING, generation=0, servers=1, migration=None, checkpoint="file:///records/1"):
    names = [f"job-ps-{number}" for number in range(servers)]
    pods = tuple(PodMetrics(name=name, role=Role.PARAMETER_SERVER, state="Running") for name in names)
    return TrainingMetrics(
        job="job", phase=phase, generation=generation, pods=pods, migration=migration, checkpoint=checkpoint
    )


def one_round(scaling, airflow, state, output):
    scaling.look("job", metrics())
    (running,) = [run_id for run_id, found in airflow.rounds.items() if found == "running"]
    airflow.rounds[running], airflow.output = state, output
    scaling.look("job", metrics())


def test_a_job_that_does_not_train_is_left_alone(airflow, said):
    Scaling(airflow, said.append, kills=True).look("job", metrics(Phase.STARTING))
    assert (airflow.triggered, said) == ([], [])


def test_one_round_runs_at_a_time(airflow, said):
    scaling = Scaling(airflow, said.append, kills=False)
    for _ in range(3):
        scaling.look("job", metrics())
    assert airflow.triggered == ["round-1"]


def test_a_scheduled_round_is_printed_too(airflow, said):
    scaling = Scaling(airflow, said.append, kills=False)
    scaling.look("job", metrics(Phase.STARTING))
    airflow.rounds["scheduled"], airflow.output = "success", GROWN
    scaling.look("job", metrics())
    assert said == ["scaling round 1: 1 → 3 workers, pause of training 0.25 s"]


@pytest.mark.parametrize(
    ("state", "output", "words", "changes"),
    [
        ("success", GROWN, "1 → 3 workers, pause of training 0.25 s", ["1 → 3 workers, pause of training 0.25 s"]),
        ("success", REFUSED, "1 → 3 workers: refused no room", []),
        ("success", None, "leaves the job as it is: stays: 8 plans examined", []),
        ("failed", None, "failed: see the DAG auto_scaling in Airflow", []),
    ],
)
def test_the_end_of_a_round_is_printed(airflow, said, state, output, words, changes):
    scaling = Scaling(airflow, said.append, kills=False)
    one_round(scaling, airflow, state, output)
    assert said == [f"scaling round 1: {words}"]
    assert scaling.changes == changes


def test_servers_that_the_jobs_master_adds_between_rounds_are_growth_too(airflow, said, monkeypatch):
    killed = []
    monkeypatch.setattr(Scaling, "_kill", lambda self, job_id, metrics: killed.append(len(metrics.pods)))
    scaling = Scaling(airflow, said.append, kills=True)
    scaling.look("job", metrics())
    scaling.look("job", metrics(servers=2, migration=MigrationMetrics(stage="copying")))
    assert (scaling.grown, killed, said) == ("", [], [])
    scaling.look("job", metrics(servers=2, checkpoint=None))
    assert killed == [], "without a record the job would begin again"
    scaling.look("job", metrics(servers=2))
    assert (scaling.grown, killed, said) == ("1 → 2 servers", [2], ["the job has grown: 1 → 2 servers"])


@pytest.mark.parametrize(
    ("state", "output", "reasons", "why"),
    [
        ("success", None, {"job": "stays: 8 plans examined"}, "stays: 8 plans examined"),
        ("success", None, {"other": "grows"}, "the last round did not find the job training"),
        ("success", None, None, "the last round did not find the job training"),
        ("success", REFUSED, {}, "1 → 3 workers: refused no room"),
        ("failed", None, None, "the last round failed: see the DAG auto_scaling in Airflow"),
    ],
)
def test_a_job_that_is_not_changed_has_the_reason_of_the_last_round(airflow, said, state, output, reasons, why):
    scaling, airflow.reasons = Scaling(airflow, said.append, kills=False), reasons
    assert scaling.why_unchanged == "no round of scaling has ended while it trained"
    one_round(scaling, airflow, state, output)
    assert scaling.why_unchanged == why


def test_a_server_that_is_not_killed_has_the_last_reason_while_the_job_trained(airflow, said):
    scaling = Scaling(airflow, said.append, kills=True)
    reasons = [scaling.why_not_killed]

    def look(**values):
        scaling.look("job", metrics(**values))
        reasons.append(scaling.why_not_killed)

    look()
    look(servers=2, checkpoint=None)
    look(servers=2, migration=MigrationMetrics(stage="copying"))
    look(servers=2)
    look(phase=Phase.EVALUATING)
    assert reasons == [
        "the job was not seen training",
        "the job has not grown",
        "the job had no record, without which it would begin again",
        "the job's pods were being changed until its training ended",
        "no process of its parameter servers was found on this machine",
        "no process of its parameter servers was found on this machine",
    ]
    unwanted = Scaling(airflow, said.append, kills=False)
    unwanted.look("job", metrics())
    assert unwanted.why_not_killed == "--no-kill"


@pytest.mark.services
def test_a_parameter_server_is_killed_once_when_the_job_has_grown(airflow, said):
    names = {"ELASTREC_JOB": "job", "ELASTREC_POD": "job-ps-0"}
    with subprocess.Popen(["sleep", "1000"], env={**os.environ, **names}) as server:
        scaling = Scaling(airflow, said.append, kills=True)
        one_round(scaling, airflow, "success", REFUSED)
        assert server.poll() is None
        one_round(scaling, airflow, "success", GROWN)
        assert server.wait(20) == -9
    scaling.look("job", metrics(Phase.RECOVERING))
    assert scaling.back_after_seconds is None
    scaling.look("job", metrics(generation=1))
    assert scaling.back_after_seconds is not None
    assert [words for words in said if words.startswith("killed")] == [
        f"killed the parameter server job-ps-0 (process {server.pid}), as a lost node would"
    ]
