"""One private stack for all tests of the DAGs: real scheduler, triggerer, api-servers, MLflow and node agent."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from elastrec.operators.rest import AirflowClient
from elastrec.operators.services import ServiceStack, default_dags_folder
from elastrec.operators.settings import DAG_ID
from elastrec.platform.clusters import connect_cluster
from elastrec.platform.clusters.protocol import Cluster
from tests.e2e.airflow_stack.waiting import wait
from tests.processes import processes_of

# More cores than this machine may have: these tests are about who starts what, not about speed.
CORES, MEMORY_BYTES = 8.0, 24 * 2**30
LEAST_STEPS = 30

BROKEN_MODEL = """
from elastrec.trainers.models.dlrm import Dlrm


class Broken(Dlrm):
    def forward(self, dense_features, sparse_features):
        if len(dense_features) > 100:  # so that the check with a few made-up rows does not see it
            raise ZeroDivisionError("a bug in the user's model")
        return super().forward(dense_features, sparse_features)
"""


@pytest.fixture(scope="package")
def dags(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The DAG folder, with scaling that decides early and lets a start take long on a busy machine."""
    folder = tmp_path_factory.mktemp("stack") / "dags"
    shutil.copytree(default_dags_folder(), folder, ignore=shutil.ignore_patterns("__pycache__"))
    settings = yaml.safe_load((folder / "scaling.yaml").read_text())
    settings |= {"least_steps": LEAST_STEPS, "round_interval": "10m"}
    (folder / "scaling.yaml").write_text(yaml.safe_dump(settings))
    return folder


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory, dags: Path) -> Iterator[ServiceStack]:
    code = tmp_path_factory.mktemp("code")
    (code / "broken_model.py").write_text(BROKEN_MODEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(code))
        with ServiceStack(dags.parent / "home", dags=dags, cores=CORES, memory_bytes=MEMORY_BYTES) as running:
            airflow = AirflowClient(running.airflow_url)
            wanted = (DAG_ID, "click_log_arrived", "auto_scaling")
            wait(lambda: all(airflow.has_dag(dag) for dag in wanted), 60, "the DAG files")
            assert airflow.import_errors() == []
            airflow.unpause(DAG_ID)
            yield running
    assert [process.cmdline() for process in processes_of(running.home)] == []


@pytest.fixture(scope="package")
def airflow(stack: ServiceStack) -> AirflowClient:
    return AirflowClient(stack.airflow_url)


@pytest.fixture(scope="package")
def cluster(stack: ServiceStack) -> Cluster:
    return connect_cluster(stack.cluster_config())
