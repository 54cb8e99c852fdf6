"""The buttons of tasks: links to the job's run in MLflow, and to its page with its migrations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink
from airflow.sdk.configuration import conf
from airflow.sdk.execution_time.xcom import XCom

from elastrec.operators.settings import PREFIX

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context
    from airflow.sdk.types import RuntimeTaskInstanceProtocol

RUN_URL_KEY = "mlflow_run_url"
MIGRATION_URL_KEY = "migration_url"


class _PushedLink(BaseOperatorLink):
    """A button whose address is pushed by the task.

    Airflow computes links only when a task ends. Therefore, the address is pushed as soon as it is known, under the key
    that the UI reads, so that the button works while the task is waiting.
    """

    key: str

    @property
    def xcom_key(self) -> str:
        """The XCom from which the UI reads the address."""
        return self.key

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        """The address; empty until it is pushed."""
        return str(XCom.get_value(key=self.key, ti_key=ti_key) or "")


class MlflowRunLink(_PushedLink):
    """Opens the MLflow run or, on tasks that end before it exists, the list in which it will appear."""

    name = "MLflow run"
    key = RUN_URL_KEY


class MigrationLink(_PushedLink):
    """Opens the job's page in Airflow, which shows running migrations."""

    name = "Migration"
    key = MIGRATION_URL_KEY


def push_link(context: Context, url: str) -> None:
    """Makes the button of the running task open `url`."""
    task_instance: RuntimeTaskInstanceProtocol = context["ti"]
    task_instance.xcom_push(key=RUN_URL_KEY, value=url)


def push_migration_link(context: Context, connection: str, job_id: str) -> None:
    """Makes the button of the running task open the job's page."""
    base = conf.get("api", "base_url", fallback="").rstrip("/")
    url = f"{base}{PREFIX}/jobs/{quote(job_id, safe='')}?connection={quote(connection, safe='')}#migrations"
    context["ti"].xcom_push(key=MIGRATION_URL_KEY, value=url)
