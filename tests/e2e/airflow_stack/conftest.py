"""One private stack for all tests of the DAGs, with real scheduler, triggerer, api-servers, MLflow and node agent."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import yaml

from elastrec.operators.settings import DAG_ID
from elastrec.platform.clusters import connect_launcher
from elastrec.platform.clusters.protocol import Launcher
from elastrec.platform.jobs import Platform, stop
from tests.e2e.airflow_stack.waiting import wait
from tests.processes import processes_of
from tools.stack.rest import AirflowClient
from tools.stack.services import AIRFLOW_SERVICES, ServiceStack, answers, default_dags_folder
from tools.stack.watching import keep_running

# More cores than this machine may have: these tests are about who starts what, not about speed.
CORES, MEMORY_BYTES = 8.0, 24 * 2**30
LEAST_STEPS = 30
_SHOWN_LINES = 20

BROKEN_MODEL = """
from elastrec.trainers.models.dlrm import Dlrm


class Broken(Dlrm):
    def forward(self, dense_features, sparse_features):
        if len(dense_features) > 100:  # so that the check with a few made-up rows does not see it
            raise ZeroDivisionError("a bug in the user's model")
        return super().forward(dense_features, sparse_features)
"""

_DAGS = (DAG_ID, "click_log_arrived", "auto_scaling", "bare_training")

# One mapped, deferred task and nothing behind it: when a person ends it, only its trigger can stop the job.
BARE_DAG = "bare_training"
_BARE_DAG_FILE = f"""
from airflow.sdk import DAG, Param, task

from elastrec.operators.training import (
    LaunchJobOperator,
    OfflinePhaseOperator,
    PrepareDataOperator,
    WarmStartOperator,
)

with DAG(
    dag_id="{BARE_DAG}",
    schedule=None,
    render_template_as_native_obj=True,
    params={{"job": Param({{}}, type="object")}},
):
    prepared = PrepareDataOperator(task_id="prepare_data", jobs_folder="/", job="{{{{ params.job }}}}")
    allocation = WarmStartOperator(task_id="warm_start", prepared=prepared.output)
    launched = LaunchJobOperator(task_id="launch", allocation=allocation.output)
    jobs = task(lambda launched: [launched], task_id="jobs")(launched.output)
    OfflinePhaseOperator.partial(task_id="offline_phase", retries=0, deferrable=True).expand(launched=jobs)
"""


@pytest.fixture(scope="package")
def dags(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The DAG folder, with scaling that decides early and lets a start take long on a busy machine."""
    folder = tmp_path_factory.mktemp("stack") / "dags"
    shutil.copytree(default_dags_folder(), folder, ignore=shutil.ignore_patterns("__pycache__"))
    settings = yaml.safe_load((folder / "scaling.yaml").read_text())
    settings |= {"least_steps": LEAST_STEPS, "round_interval": "10m"}
    (folder / "scaling.yaml").write_text(yaml.safe_dump(settings))
    (folder / "bare_training.py").write_text(_BARE_DAG_FILE)
    return folder


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory, dags: Path) -> Iterator[ServiceStack]:
    code = tmp_path_factory.mktemp("code")
    (code / "broken_model.py").write_text(BROKEN_MODEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(code))
        with (
            ServiceStack(dags.parent / "home", dags=dags, cores=CORES, memory_bytes=MEMORY_BYTES) as running,
            keep_running(running),
        ):
            airflow = AirflowClient(running.airflow_url)
            for dag in (*_DAGS, "click_log_clustered"):
                wait(lambda dag=dag: airflow.has_dag(dag), f"the DAG {dag}")  # type: ignore[misc]
            assert airflow.import_errors() == []
            for dag in (DAG_ID, BARE_DAG):
                airflow.unpause(dag)
            yield running
    assert [process.cmdline() for process in processes_of(running.home)] == []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows what the services that carry runs on wrote last: their logs go with the stack."""
    report = yield
    stack = getattr(item, "funcargs", {}).get("stack")
    if report.failed and stack is not None:
        for name in ("scheduler", "triggerer"):
            log = stack.home / "logs" / f"{name}.log"
            lines = [line for line in log.read_text(errors="replace").splitlines() if "was blocked for" not in line]
            report.sections.append((f"end of the {name}'s log", "\n".join(lines[-_SHOWN_LINES:])))
    return report


@pytest.fixture(scope="package")
def airflow(stack: ServiceStack) -> AirflowClient:
    return AirflowClient(stack.airflow_url)


@pytest.fixture(scope="package")
def launcher(stack: ServiceStack) -> Launcher:
    return connect_launcher(stack.cluster_config())


@pytest.fixture(autouse=True)
def _clean_up(stack: ServiceStack, airflow: AirflowClient, launcher: Launcher) -> Iterator[None]:
    """Ends what a test that failed left behind: killed services, unfinished runs, jobs. The next test starts clean."""
    yield
    for name in AIRFLOW_SERVICES:
        if name not in stack.services:
            stack.start_airflow(name)
    wait(lambda: answers(f"{stack.airflow_url}/api/v2/monitor/health"), "the API server")
    left = [run for dag in _DAGS for run in airflow.end_active_runs(dag)]
    if not left and not launcher.pods():
        return
    # Airflow's own way first: triggers and the teardown tasks of the runs stop the jobs.
    with contextlib.suppress(AssertionError):
        wait(launcher.pods, "the end of the jobs", lambda pods: not pods, seconds=60)
    platform = Platform.connect(stack.cluster_config(), stack.mlflow_url, str(stack.home / "work"))
    for job in {pod.job for pod in launcher.pods()}:
        stop(platform, job, "a test left it behind")
    wait(launcher.pods, "the end of the pods", lambda pods: not pods)
    wait(lambda: [task for dag in _DAGS for task in _unfinished(airflow, dag)], "the end of tasks", lambda at: not at)


def _unfinished(airflow: AirflowClient, dag_id: str) -> list[str]:
    """Tasks that run, or are about to, in any run of a DAG."""
    query = "&".join(f"state={state}" for state in ("scheduled", "queued", "running", "restarting", "deferred"))
    found = airflow.call("GET", f"/dags/{dag_id}/dagRuns/~/taskInstances?{query}")["task_instances"]
    return [f"{task['dag_run_id']} {task['task_id']} {task['state']}" for task in found]
