"""The button on each task that opens the job's run in MLflow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperatorLink
from airflow.sdk.execution_time.xcom import XCom

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context
    from airflow.sdk.types import RuntimeTaskInstanceProtocol

RUN_URL_KEY = "mlflow_run_url"


class MlflowRunLink(BaseOperatorLink):
    """Opens the MLflow run; on tasks that end before there is one, the list in which it will appear.

    Airflow computes links when a task ends; the address is therefore pushed by `push_link` as soon as it is known,
    under the key that the UI reads, so that the button works while the training runs.
    """

    name = "MLflow run"

    @property
    def xcom_key(self) -> str:
        """The XCom that the UI reads the address from."""
        return RUN_URL_KEY

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        """The address, empty before there is a run."""
        return str(XCom.get_value(key=RUN_URL_KEY, ti_key=ti_key) or "")


def push_link(context: Context, url: str) -> None:
    """Makes the button of the running task open `url`."""
    task_instance: RuntimeTaskInstanceProtocol = context["ti"]
    task_instance.xcom_push(key=RUN_URL_KEY, value=url)
