"""The pages show data of the cluster, masters and MLflow, each of which may be unreachable; only users may see them."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from airflow.api_fastapi.core_api.security import get_user
from fastapi.testclient import TestClient

from elastrec.operators.pages import looks
from elastrec.operators.pages.app import app
from elastrec.operators.pages.looks import AllJobs, JobLook, OneJob
from elastrec.platform.clusters.pods import PodPhase, PodSize, PodStatus
from elastrec.platform.history import History
from elastrec.platform.history.decisions import Decisions
from elastrec.platform.history.scaling_figures import Decision, change, proposed
from elastrec.platform.jobs import Observation
from elastrec.platform.jobs.starting.launching import RUN_LABEL
from elastrec.platform.master.measuring.time_profile import PARTS
from elastrec.platform.scaling.memory_watch import MEMORY
from elastrec.platform.scaling.types import Plan
from elastrec.platform.specs.errors import ClusterError, HistoryError
from elastrec.platform.specs.metrics import FaultCost, Phase, PodMetrics, Role, TrainingMetrics
from elastrec.platform.specs.shape import MigrationSeen, MovedServer
from elastrec.platform.transport.messages.ledger import Explanation, TimelineEntry
from tests.phones import phone, stacked_tables
from tests.platform.scaling.jobs import allocation

CONNECTION = "elastrec_default"
METRICS = TrainingMetrics(
    job="clicks-1",
    phase=Phase.TRAINING,
    samples_total=1000,
    samples_trained=370,
    samples_per_second=12_345.0,
    loss=0.4567,
    auc=0.7654,
    pods=(
        PodMetrics(name="clicks-1-worker-0", role=Role.WORKER, state="ready"),
        PodMetrics(name="clicks-1-worker-1", role=Role.WORKER, state="starting"),
        PodMetrics(name="clicks-1-ps-0", role=Role.PARAMETER_SERVER, state="ready"),
    ),
)
STORY = Explanation(
    job="clicks-1",
    phase="Training",
    wall_seconds=100.0,
    parts={"training": 75.0, "starting": 25.0, "idle": 0.0},
    goodput=0.75,
    timeline=[
        TimelineEntry(
            seconds=3.0,
            unix_seconds=1.7e9,
            what="lost <b>w-0</b>",
            cause="its node is gone",
            cost=FaultCost(paused_seconds=2.5),
        )
    ],
)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """A user whom Airflow lets read DAG runs."""
    monkeypatch.setattr(looks, "KEPT_SECONDS", -1.0)
    manager = SimpleNamespace(is_authorized_dag=lambda **asked: asked["user"] != "stranger")
    monkeypatch.setattr("airflow.api_fastapi.core_api.security.get_auth_manager", lambda: manager)
    app.dependency_overrides[get_user] = lambda: "somebody"
    yield TestClient(app)
    app.dependency_overrides.clear()


def show(monkeypatch: pytest.MonkeyPatch, seen: AllJobs | OneJob) -> None:
    name = "all_jobs" if isinstance(seen, AllJobs) else "one_job"
    monkeypatch.setattr(looks, name, lambda *of: seen)


def test_all_jobs_of_the_cluster_are_listed_with_their_activity(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    show(monkeypatch, AllJobs([JobLook("clicks-1", METRICS, run_url="http://mlflow/run")]))
    page = client.get("/").text
    for text in ("clicks-1", "Training", "37 %", "12,345", "0.4567", "0.7654", 'href="http://mlflow/run"'):
        assert text in page
    assert "No finished job is known" in page
    assert '<span class="progress"><span class="bar"><span style="width: 37.0%"></span></span> 37 %</span>' in page


def test_a_finished_job_shows_the_days_of_its_data_with_the_last_one(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = SimpleNamespace(
        interval=("2026-01-01T00:00:00+00:00", "2026-01-04T00:00:00+00:00"), samples_trained=9, auc=None,
        normalized_entropy=None, core_hours=None, cost="", started_unix_seconds=1.7e9, phase=Phase.SUCCEEDED,
        reason="", airflow_url="", log_url="",
    )  # fmt: skip
    show(monkeypatch, AllJobs(recent=[JobLook("clicks-1", record=record)]))
    page = client.get("/").text
    assert "2026-01-01 to 2026-01-03" in page and "2026-01-04" not in page
    show(monkeypatch, OneJob(JobLook("clicks-1", record=record)))
    page = client.get("/jobs/clicks-1").text
    assert "<b>9</b>samples" in page and "of the training rows" not in page, "its progress is not known any more"


def test_a_running_job_shows_its_cost_and_its_last_decision(
    cluster: Cluster, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = Decision(
        unix_seconds=1.7e9, samples_trained=9, policy="three-stage", before=allocation(2), after=allocation(3),
        changed=False, reason="no node has the room",
    )  # fmt: skip
    earlier = msgspec.structs.replace(refused, after=allocation(1), changed=True)
    record = SimpleNamespace(
        run_id="run", core_hours=2.5, cost="1.25 EUR", auc=None, airflow_url="", log_url="http://airflow/log?try=2",
        reason="", phase=Phase.TRAINING,
    )  # fmt: skip
    monkeypatch.setattr(looks, "_history", lambda platform, away: "history")
    monkeypatch.setattr(
        looks,
        "_records",
        lambda history, away, job_id="": dict.fromkeys(["clicks-1", "views-2"], (record, "http://mlflow/r")),
    )
    monkeypatch.setattr(Decisions, "decisions", lambda self, run_id: [earlier, refused])
    page = client.get("/", params={"part": "main"}).text
    for text in (
        "2.5000",
        "1.25 EUR",
        'href="http://airflow/log?try=2"',
        "2 → 3 workers (not done)",
        "three-stage: no node has the room",
    ):
        assert text in page
    assert "2 → 1 workers" not in page

    def fail(self: Decisions, run_id: str) -> None:
        raise HistoryError("MLflow refuses")

    monkeypatch.setattr(Decisions, "decisions", fail)
    seen = looks.all_jobs(CONNECTION)
    assert seen.away == ["MLflow refuses"] and [job.decision for job in seen.running] == [None, None]


def test_the_script_requests_only_the_main_part(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    show(monkeypatch, AllJobs())
    whole, part = (client.get("/", params={"part": part}).text for part in ("", "main"))
    assert "<script>" in whole and "<script>" not in part
    assert "No job is in the cluster" in part and part in whole


def test_the_page_names_a_source_that_does_not_answer_and_shows_the_rest(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    show(monkeypatch, AllJobs([JobLook("clicks-1", METRICS)], away=["MLflow does not answer"]))
    page = client.get("/").text
    assert "MLflow does not answer" in page and "clicks-1" in page


def test_a_job_shows_pods_time_and_events_with_escaped_texts(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = PodStatus(
        name="clicks-1-worker-0", uid="1", job="clicks-1", role=Role.WORKER, phase=PodPhase.RUNNING,
        size=PodSize(1.5, 2**31), memory_bytes=3 * 2**28, restarts=2,
    )  # fmt: skip
    pods = [pod, msgspec.structs.replace(pod, name="clicks-1-master", role=Role.MASTER)]
    seen = OneJob(JobLook("clicks-1", METRICS), "", pods, STORY, {"training": "workers trained rows that count"})
    show(monkeypatch, seen)
    page = client.get("/jobs/clicks-1").text
    assert page.index("clicks-1-master") < page.index("clicks-1-worker-0"), "pods are sorted by role"
    for text in (
        "clicks-1-worker-0",
        "1.5",
        "2 GiB",
        "768 MiB",
        "75 %",
        "workers trained rows that count",
        "1 min 15 s",
    ):
        assert text in page
    assert (
        "lost &lt;b&gt;w-0&lt;/b&gt;" in page and "its node is gone" in page and "cost: training paused 2.5 s" in page
    )


def test_a_migration_is_shown_while_it_is_under_way(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    moving = MigrationSeen(
        servers_before=1, servers_after=2, unix_seconds=1.7e9, begun_seconds=80.0, copying_seconds=90.0,
        servers=[MovedServer(name="ps-0"), MovedServer(name="ps-1", is_new=True, up_seconds=88.0)],
    )  # fmt: skip
    story = msgspec.structs.replace(STORY, migrations=[moving], earlier_seconds=None)
    show(monkeypatch, OneJob(JobLook("clicks-1", METRICS), explanation=story))
    page = client.get("/jobs/clicks-1", params={"part": "main"}).text
    for text in ("1 → 2 parameter servers", "under way", "ps-1", "<title>starts: 8.00 s", "<title>copies: 10.00 s"):
        assert text in page
    assert "of the time since the job was resumed; the time before is unknown" in page


@pytest.mark.browser
@pytest.mark.services
def test_on_a_phone_no_table_scrolls_sideways(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "clicks-of-the-north-3f9a2c7be1d04c65"
    decision = Decision(
        unix_seconds=1.7e9, samples_trained=9, policy="three-stage", before=allocation(2), after=allocation(4),
        changed=False, reason="no node has the room for another worker", proposed="3 candidates: 2 → 4 workers",
    )  # fmt: skip
    pod = PodStatus(
        name=f"{long}-parameter-server-0", uid="1", job=long, role=Role.PARAMETER_SERVER, phase=PodPhase.FAILED,
        size=PodSize(1.5, 2**31), memory_bytes=3 * 2**28, restarts=2, reason="killed for memory", node=f"node-{long}",
    )  # fmt: skip
    lost = msgspec.structs.replace(STORY.timeline[0], what="lost " + "checkpoints/" * 12)
    record = SimpleNamespace(
        interval=("2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00"), samples_trained=1e9, auc=0.75,
        normalized_entropy=0.9, core_hours=2.5, cost="1,250.50 EUR", started_unix_seconds=1.7e9, phase=Phase.FAILED,
        reason="its rows cannot be read: " + "day/" * 20, airflow_url="http://airflow/r", log_url="http://airflow/log",
    )  # fmt: skip
    running = JobLook(long, METRICS, record=record, run_url="http://mlflow/r", decision=(decision, "2 → 4 workers"))
    waiting = JobLook("a", TrainingMetrics(job="a", phase=Phase.PENDING, reason="no node has the room"))
    ended = JobLook(long, record=record, run_url="http://mlflow/r")
    with phone() as page:
        show(monkeypatch, AllJobs([running, waiting], [ended, ended]))
        page.set_content(client.get("/").text)
        assert stacked_tables(page) == ["running", "recent"]
        story = msgspec.structs.replace(STORY, timeline=[lost, *STORY.timeline])
        show(monkeypatch, OneJob(running, "", [pod], story, PARTS, decisions=[(decision, "2 → 4 workers")]))
        page.set_content(client.get(f"/jobs/{long}").text)
        assert stacked_tables(page) == ["pods", "decisions", "timeline"]


def test_decisions_of_scaling_show_proposal_choice_and_outcome(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = allocation(2), allocation(2, server_cores=0.5)
    refused = Decision(
        unix_seconds=1.7e9, samples_trained=9, policy="three-stage", before=before, after=after, changed=False,
        reason="no node has the room", proposed="3 candidates: 2 → 4 workers",
    )  # fmt: skip
    decisions = [(refused, change(before, after)), (msgspec.structs.replace(refused, changed=True), "1 → 2 GiB")]
    show(monkeypatch, OneJob(JobLook("clicks-1", METRICS), decisions=decisions))
    page = client.get("/jobs/clicks-1", params={"part": "main"}).text
    rows = [row for row in page.split("<tr>") if "three-stage" in row]
    assert len(rows) == 2
    for text in ("3 candidates: 2 → 4 workers", "1 → 0.5 cores per server", '"Done">no</td>', "no node has the room"):
        assert text in rows[0]
    assert "1 → 2 GiB" in rows[1] and '"Done">yes</td>' in rows[1]


def test_pages_name_who_decided_and_roles_in_words(
    cluster: Cluster, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(
        job_id="clicks-1", policy=MEMORY, before=allocation(2), allocation=allocation(2, servers=2), reason="soon full"
    )  # fmt: skip
    own = Decision(
        unix_seconds=1.7e9, samples_trained=9, policy=plan.policy, before=plan.before, after=plan.allocation,
        changed=True, reason=plan.reason, proposed=proposed(plan),
    )  # fmt: skip
    server = PodStatus(
        name="clicks-1-ps-0", uid="1", job="clicks-1", role=Role.PARAMETER_SERVER, phase=PodPhase.RUNNING,
        size=PodSize(1.0, 2**31),
    )  # fmt: skip
    seen = OneJob(JobLook("clicks-1", METRICS), pods=[server], decisions=[(own, change(own.before, own.after))])
    show(monkeypatch, seen)
    page = client.get("/jobs/clicks-1", params={"part": "main"}).text
    assert '"Policy">the memory forecast</td>' in page and ">by the memory forecast</td>" in page
    assert '"Role">parameter server</td>' in page
    assert MEMORY not in page and "parameter-server" not in page
    show(monkeypatch, AllJobs(running=[JobLook("clicks-1", METRICS, decision=(own, "2 servers"))]))
    page = client.get("/", params={"part": "main"}).text
    assert "the memory forecast: soon full" in page and MEMORY not in page


def test_pages_are_refused_to_those_who_may_not_read_dag_runs(client: TestClient) -> None:
    app.dependency_overrides[get_user] = lambda: "stranger"
    assert client.get("/").status_code == 403
    app.dependency_overrides.clear()
    for path in ("/", "/jobs/clicks-1"):
        assert client.get(path).status_code == 401


def test_only_named_connections_are_shown(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__ELASTREC__PAGE_CONNECTIONS", "east, west")
    show(monkeypatch, AllJobs())
    assert client.get("/", params={"connection": "west"}).status_code == 200
    refused = client.get("/", params={"connection": "aws_default"})
    assert refused.status_code == 404 and "allowed: east, west" in refused.json()["detail"]


@pytest.mark.parametrize(("named", "first"), [("east, west", "east"), ("", "elastrec_default")])
def test_the_menu_entry_opens_the_first_connection_that_is_shown(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, named: str, first: str
) -> None:
    monkeypatch.setenv("AIRFLOW__ELASTREC__PAGE_CONNECTIONS", named)
    show(monkeypatch, AllJobs())
    asked = list[str]()
    monkeypatch.setattr(looks, "all_jobs", lambda connection: asked.append(connection) or AllJobs())
    monkeypatch.setattr(looks, "one_job", lambda connection, job_id: asked.append(connection) or OneJob(JobLook("a")))
    assert client.get("/").status_code == client.get("/jobs/a").status_code == 200
    assert asked == [first, first]


@pytest.mark.parametrize("job_id", ["Clicks", "a b", "-x"])
def test_text_that_is_not_a_job_id_is_refused(client: TestClient, job_id: str) -> None:
    assert client.get(f"/jobs/{job_id}").status_code in (404, 422)


class Cluster:
    """A platform whose cluster holds one job."""

    tracking_uri, ui_url = "http://mlflow", ""

    def __init__(self, *job_ids: str) -> None:
        self.launcher = self
        self.job_ids = job_ids
        self.is_away = False

    def jobs(self) -> list[Any]:
        if self.is_away:
            raise ClusterError("connection refused")
        return [
            SimpleNamespace(job=job_id, role=Role.MASTER, labels={RUN_LABEL: f"run of {job_id}"})
            for job_id in self.job_ids
        ]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster("clicks-1", "views-2")
    monkeypatch.setattr(looks, "KEPT_SECONDS", -1.0)
    monkeypatch.setattr(looks, "_platform", lambda connection: made)
    monkeypatch.setattr("elastrec.platform.jobs.tracking_answers", lambda platform: False)

    def observe(platform: Any, job_id: str, timeout_seconds: float) -> Observation:
        if job_id == "views-2":
            raise ClusterError("its master refused to answer")
        return Observation(METRICS)

    monkeypatch.setattr("elastrec.platform.jobs.observe", observe)
    return made


def test_a_master_that_does_not_answer_costs_only_its_own_line(cluster: Cluster) -> None:
    seen = looks.all_jobs(CONNECTION)
    assert [(job.job_id, job.is_reachable) for job in seen.running] == [("clicks-1", True), ("views-2", False)]
    assert seen.running[1].reason == "its master refused to answer"
    assert (seen.running[0].up("worker"), seen.running[0].up("parameter-server")) == (1, 1)


def test_an_unreachable_cluster_or_mlflow_is_named(cluster: Cluster) -> None:
    cluster.is_away = True
    away = looks.all_jobs(CONNECTION).away
    assert any("the cluster does not answer" in each for each in away) and any("MLflow" in each for each in away)


def test_a_running_job_of_another_experiment_has_its_record_and_its_link(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def record(history: History, run_id: str) -> Any:
        asked.append(run_id)
        return SimpleNamespace(job_id="views-2", run_id=run_id)

    monkeypatch.setattr("elastrec.platform.jobs.tracking_answers", lambda platform: True)
    known = [SimpleNamespace(job_id="clicks-1", run_id="1")]
    monkeypatch.setattr(History, "job_records", lambda history, wanted, limit: known)
    monkeypatch.setattr(History, "run_url", lambda history, run_id: "")
    monkeypatch.setattr(History, "record", record)
    monkeypatch.setattr(History, "page", lambda history, run_id: f"http://mlflow/{run_id}")
    monkeypatch.setattr(looks, "_decisions", lambda *of: ([], ""))
    seen = {job.job_id: job for job in looks.all_jobs(CONNECTION).running}
    assert asked == ["run of views-2"]
    assert seen["views-2"].record is not None and seen["views-2"].run_url == "http://mlflow/run of views-2"


def test_one_observation_serves_all_viewers(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "KEPT_SECONDS", 60.0)
    monkeypatch.setattr(looks, "_kept", looks._Kept())
    first = looks.all_jobs(CONNECTION)
    assert looks.all_jobs(CONNECTION) is first
    monkeypatch.setattr(looks, "KEPT_SECONDS", -1.0)
    assert looks.all_jobs(CONNECTION) is not first
