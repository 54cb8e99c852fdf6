"""The provider as Airflow sees it: the connection, its form, and the DAG files."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import jsonschema
import msgspec
import pendulum
import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk._shared.secrets_masker import redact
from airflow.sdk.exceptions import AirflowFailException
from airflow.serialization.serialized_objects import DagSerialization
from airflow.timetables.base import DataInterval
from airflow.utils.types import DagRunType

from elastrec.operators import settings
from elastrec.operators.base import give, take
from elastrec.operators.hook import ElastrecHook
from elastrec.operators.params import read_interval
from elastrec.operators.provider_info import get_provider_info
from elastrec.operators.training import PrepareDataOperator, WarmStartOperator
from elastrec.platform.clusters.local.life_cycle import start_agent, stop_agent
from elastrec.platform.jobs import Prepared
from elastrec.platform.specs.errors import ClusterError, SpecError
from tests.operators.steps import PREPARED, context
from tests.remote_cluster import FarConfig, install
from tools.stack.services import default_dags_folder


@pytest.fixture(scope="module")
def dags() -> DagBag:
    return DagBag(default_dags_folder(), bundle_name="test")


def connect(monkeypatch: pytest.MonkeyPatch, **fields: object) -> ElastrecHook:
    content = json.dumps({"conn_type": settings.CONNECTION_TYPE, **fields})
    monkeypatch.setenv("AIRFLOW_CONN_ELASTREC_DEFAULT", content)
    return ElastrecHook()


def test_the_provider_is_found_and_its_description_is_valid() -> None:
    (entry,) = [point for point in entry_points(group="apache_airflow_provider") if point.value.startswith("elastrec.")]
    assert entry.load() is get_provider_info
    schema = json.loads((files("airflow") / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


@pytest.mark.services
def test_a_connection_reaches_a_node_agent_by_folder_or_by_address_and_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"tracking_uri": f"sqlite:///{tmp_path}/mlflow.db", "work_uri": str(tmp_path / "work")}
    cluster = start_agent(tmp_path / "agent", cores=2.0, memory_bytes=2**30, limits="threads")
    try:
        by_folder = connect(monkeypatch, extra={**extra, "agent_state": str(tmp_path / "agent")})
        assert by_folder.test_connection() == (True, "the cluster has 2 cores and 1.0 GiB for pods")
        host, _, port = cluster.address.rpartition(":")
        token_file = str(tmp_path / "agent" / "token")
        by_address = connect(monkeypatch, host=host, port=int(port), extra={**extra, "token_file": token_file})
        assert by_address.test_connection()[0]
        wrong = connect(monkeypatch, host=host, port=int(port), password="guess", extra=extra)
        assert not wrong.test_connection()[0]
    finally:
        stop_agent(tmp_path / "agent")


def test_a_connection_reaches_a_cluster_of_any_kind_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "cluster.json"
    extra = {"tracking_uri": "http://mlflow", "work_uri": "s3://bucket/work", "cluster_file": str(file)}
    with pytest.raises(SpecError, match=r"extra\.cluster_file: '.*cluster\.json' \(No such file"):
        _ = connect(monkeypatch, extra=extra).platform
    file.write_text('{"backend": "far", "shared_folders": ["/mnt/share"]}')
    assert connect(monkeypatch, extra=extra).platform.cluster_config == FarConfig(shared_folders=("/mnt/share",))
    file.write_text('{"backend": "near"}')
    with pytest.raises(
        SpecError, match=r"extra\.cluster_file\):\n  - backend: 'near' is not allowed; allowed: far, local"
    ):
        _ = connect(monkeypatch, extra=extra).platform


def test_a_password_in_a_connections_tracking_uri_is_hidden_in_task_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"tracking_uri": "http://user:s3cr%2Fet-of-mlflow@host:5000", "work_uri": str(tmp_path)}
    platform = connect(monkeypatch, host="127.0.0.1", port=1, password="token", extra=extra).platform
    assert "s3cr" not in repr(platform)
    for text in ("http://user:s3cr%2Fet-of-mlflow@host:5000/api failed", "the password s3cr/et-of-mlflow was refused"):
        assert "et-of-mlflow" not in str(redact(text))


def test_a_password_in_a_job_is_hidden_in_logs_and_rendered_templates() -> None:
    task = WarmStartOperator(
        task_id="task", prepared={"job": {"path": "s3://key:pass-of-{{ 'rendered' }}@logs/clicks"}}
    )
    task.render_template_fields({}, jinja2.Environment())  # type: ignore[typeddict-item]
    assert task.prepared == {"job": {"path": "s3://key:pass-of-rendered@logs/clicks"}}
    assert "pass-of-rendered" not in str(redact(task.prepared, "prepared"))
    give(msgspec.structs.replace(PREPARED, job_json='{"path": "s3://key:pass-of-output@logs/clicks"}'))
    with pytest.raises(AirflowFailException):
        take(Prepared, {"path": "s3://key:pass-of-input@logs/clicks"})
    for word in ("output", "input"):
        assert f"pass-of-{word}" not in str(redact(f"refused: pass-of-{word}"))


def test_a_connection_that_is_not_defined_fails_without_a_retry_and_says_how_to_add_it() -> None:
    operator = PrepareDataOperator(
        task_id="task", jobs_folder=default_dags_folder() / "jobs", job_file="dlrm.yaml", elastrec_conn_id="nowhere"
    )
    with pytest.raises(AirflowFailException, match=r"'nowhere' is not allowed.*airflow connections add nowhere"):
        operator.execute(context())  # type: ignore[arg-type]


def test_an_incomplete_connection_names_every_missing_field(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match=r"(?s)tracking_uri.*work_uri"):
        _ = connect(monkeypatch).platform
    with pytest.raises(SpecError, match=r"(?s)host.*port.*password"):
        _ = connect(monkeypatch, extra={"tracking_uri": "http://localhost", "work_uri": "/work"}).platform


def test_a_connection_takes_the_root_from_its_own_folder_or_else_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"tracking_uri": "http://localhost", "work_uri": "/work"}
    for name in ("own", "shared"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ca.pem").write_text(f"ca.pem of {name}")
    fields = {"host": "h", "port": 1, "password": "p"}
    monkeypatch.setenv("ELASTREC_TLS", str(tmp_path / "shared"))
    own = connect(monkeypatch, **fields, extra={**extra, "tls_folder": str(tmp_path / "own")}).platform
    shared = connect(monkeypatch, **fields, extra=extra).platform
    for platform, name in ((own, "own"), (shared, "shared")):
        assert platform.cluster_config.tls == f"ca.pem of {name}"
    (tmp_path / "own" / "ca.pem").unlink()
    with pytest.raises(SpecError, match=r"extra.tls_folder.*no ca.pem"):
        _ = connect(monkeypatch, **fields, extra={**extra, "tls_folder": str(tmp_path / "own")}).platform


def test_a_folder_without_an_agent_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"tracking_uri": "http://localhost", "work_uri": "/work", "agent_state": str(tmp_path)}
    with pytest.raises(ClusterError, match="no node agent runs"):
        _ = connect(monkeypatch, extra=extra).platform


def test_the_dag_files_can_be_read(dags: DagBag) -> None:
    assert dags.import_errors == {}
    assert set(dags.dags) == {"daily_retraining", "click_log_arrived", "click_log_clustered", "auto_scaling"}


def test_the_daily_dag_reads_as_the_life_of_a_job(dags: DagBag) -> None:
    dag = dags.dags["daily_retraining"]
    steps = ["prepare_data", "warm_start", "launch", "offline_phase", "evaluate_and_gate", "register", "finish"]
    assert [task.task_id for task in dag.topological_sort()] == steps
    assert dag.get_task("finish").is_teardown
    assert dag.get_task("launch").is_setup
    assert not dag.catchup
    assert all(dag.get_task(step).retries >= 2 for step in steps)


def test_a_run_by_hand_with_the_logical_date_of_a_scheduled_one_trains_on_the_same_rows(dags: DagBag) -> None:
    dag = DagSerialization.from_dict(DagSerialization.to_dict(dags.dags["daily_retraining"]))
    last = DataInterval.exact(pendulum.datetime(2026, 1, 2, 2))
    restriction = dag._time_restriction._replace(catchup=True)
    scheduled = dag.timetable.next_dagrun_info(last_automated_data_interval=last, restriction=restriction)
    assert scheduled is not None and scheduled.logical_date is not None and scheduled.data_interval is not None
    by_hand = dag.timetable.infer_manual_data_interval(run_after=scheduled.logical_date)
    days = read_interval(None, None, scheduled.data_interval)
    assert days is not None and [moment.day for moment in days.moments()] == [1, 2, 3]
    assert read_interval(None, None, by_hand) == days
    # The run that an announced day starts has this logical date too, so that there are not two of them.
    started = dags.dags["click_log_arrived"].get_task("retrain")
    announced = SimpleNamespace(partition_key="2026-01-02")
    template = jinja2.Template(started.logical_date)
    assert (
        pendulum.parse(template.render(dag_run=announced, **dags.dags["click_log_arrived"].user_defined_macros))
        == scheduled.logical_date
    )


@pytest.mark.parametrize("dag_id", ["daily_retraining", "auto_scaling"])
def test_a_dag_whose_runs_must_not_overlap_refuses_backfills_and_no_other_run(dags: DagBag, dag_id: str) -> None:
    # The scheduler compares `max_active_runs` with the runs outside of backfills only.
    dag = DagSerialization.from_dict(DagSerialization.to_dict(dags.dags[dag_id]))
    assert dag.max_active_runs == 1
    assert set(dag.allowed_run_types) == set(DagRunType) - {DagRunType.BACKFILL_JOB}


def test_no_dag_has_a_default_job(dags: DagBag) -> None:
    for dag_id in ("daily_retraining", "click_log_clustered"):
        params = dags.dags[dag_id].params
        assert all(params.get_param(name).resolve() in (None, {}) for name in params), dag_id


@pytest.mark.parametrize(
    ("dag_id", "task_id", "field", "param", "variable"),
    [
        ("daily_retraining", "prepare_data", "job_file", "job_file", "elastrec_job_file"),
        ("click_log_clustered", "cluster", "job_file", "job_file", "elastrec_job_file"),
        ("click_log_clustered", "inspect", "path", "destination", "elastrec_clustered_log"),
    ],
)
def test_an_empty_field_takes_its_value_from_an_airflow_variable(
    dags: DagBag, dag_id: str, task_id: str, field: str, param: str, variable: str
) -> None:
    task = dags.dags[dag_id].get_task(task_id)

    def render(value: str | None, variables: dict[str, str]) -> Any:
        values = {"params": {param: value}, "var": {"value": variables}}
        return task.get_template_env().from_string(getattr(task, field)).render(values)

    assert render(None, {variable: "/jobs/daily.yaml"}) == "/jobs/daily.yaml"
    assert render("/jobs/mine.yaml", {variable: "/jobs/daily.yaml"}) == "/jobs/mine.yaml"
    assert render(None, {}) == ""


def test_scaling_runs_one_round_at_a_time_with_one_task_per_job_that_is_to_change(dags: DagBag) -> None:
    dag = dags.dags["auto_scaling"]
    assert [task.task_id for task in dag.topological_sort()] == ["plan", "migrate"]
    assert dag.max_active_runs == 1 and not dag.catchup
    migrate = dag.get_task("migrate")
    assert migrate.is_mapped and "map_index_name" in str(migrate.map_index_template)


@pytest.mark.parametrize(("catchup", "rounds"), [(False, 1), (True, 100)])
def test_rounds_that_were_missed_are_not_caught_up_with(dags: DagBag, catchup: bool, rounds: int) -> None:
    # As the scheduler knows it, which was away for five hours; beside it what its own setting keeps from happening.
    dag = DagSerialization.from_dict(DagSerialization.to_dict(dags.dags["auto_scaling"]))
    now, restriction, runs = pendulum.now("UTC"), dag._time_restriction, []
    assert not restriction.catchup
    last = DataInterval.exact(now.subtract(hours=5))
    while following := dag.timetable.next_dagrun_info(
        last_automated_data_interval=last, restriction=restriction._replace(catchup=catchup)
    ):
        if following.run_after > now:
            break
        runs.append(following.run_after)
        last = following.data_interval
    assert abs(len(runs) - rounds) <= 1
    assert catchup or all(now - run <= timedelta(minutes=3) for run in runs)


@pytest.mark.parametrize("first", ["settings", "provider_info", "runs"])
def test_a_module_that_airflow_loads_while_it_starts_may_be_imported_before_airflow(first: str) -> None:
    # Airflow loads `provider_info` in its own first import, and `settings` with it; neither may import Airflow.
    program = f"import elastrec.operators.{first}, sys; print('airflow' in sys.modules); import airflow.configuration"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{first == 'runs'}\n"


def test_dag_files_load_neither_torch_nor_mlflow() -> None:
    code = (
        "import runpy, sys\n"
        "for file in sys.argv[1:]:\n"
        "    runpy.run_path(file)\n"
        "    print(file, [name for name in ('torch', 'torchrec', 'mlflow', 'numba') if name in sys.modules])"
    )
    files = [str(file) for file in sorted(default_dags_folder().glob("*.py"))]
    command = [sys.executable, "-W", "ignore", "-c", code, *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=True)
    assert files and done.stdout.splitlines()[-len(files) :] == [f"{file} []" for file in files]
