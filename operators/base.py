"""What the operators share: the platform, the values that travel between tasks, owner tokens and errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import msgspec
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from elastrec.operators import settings
from elastrec.operators.hook import ElastrecHook
from elastrec.operators.links import MlflowRunLink
from elastrec.platform.specs.errors import DataError, JobFailedError, SpecError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from elastrec.platform.jobs import Platform

Value = TypeVar("Value", bound=msgspec.Struct)


class ElastrecOperator(BaseOperator):
    """Base of the operators.

    Values of `elastrec.platform.jobs.types` travel between tasks as plain JSON objects: a task's input argument is
    another operator's `.output`.

    Args:
        elastrec_conn_id: the connection that names cluster, tracking server and work folder.
    """

    ui_color = "#e8f1fb"
    operator_extra_links = (MlflowRunLink(),)

    def __init__(
        self,
        *,
        elastrec_conn_id: str = settings.DEFAULT_CONNECTION_ID,
        retries: int = settings.RETRIES,
        retry_delay: Any = settings.RETRY_DELAY,
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, retry_delay=retry_delay, **kwargs)
        self.elastrec_conn_id = elastrec_conn_id

    @cached_property
    def _hook(self) -> ElastrecHook:
        return ElastrecHook(self.elastrec_conn_id)

    @property
    def platform(self) -> Platform:
        """The platform of the connection."""
        return self._hook.platform


def watched(task: ElastrecOperator, context: Context, job_id: str, owner: str) -> dict[str, Any]:
    """What every trigger of a job's task is told: the job, how to reach it, and the task that it is watched for."""
    this = context["ti"]
    return {
        "job_id": job_id,
        "conn_id": task.elastrec_conn_id,
        "owner": owner,
        "dag_id": this.dag_id,
        "run_id": this.run_id,
        "watched_task_id": this.task_id,
        "map_index": _map_index(context),
        "try_number": this.try_number,
    }


def owner_token(context: Context) -> str:
    """Names this try of this task: who holds it may stop the job, until another try takes the job over."""
    task, index = context["ti"], _map_index(context)
    name = task.task_id if index < 0 else f"{task.task_id}[{index}]"
    return f"{task.dag_id}/{task.run_id}/{name}/{task.try_number}"


def _map_index(context: Context) -> int:
    """The index of a mapped task instance, -1 for others."""
    index = context["ti"].map_index
    return -1 if index is None else index


def owner_key(context: Context) -> str:
    """Names what the job is for: the DAG and its logical date (or the run, when it has none)."""
    run = context["dag_run"]
    moment = run.logical_date.isoformat() if run.logical_date else run.run_id
    return f"{run.dag_id}/{moment}"


def run_tags(context: Context) -> dict[str, str]:
    """Tags by which the job's run in MLflow leads back to the DAG run."""
    from airflow.sdk.configuration import conf

    from elastrec.platform.history.records import TAG_AIRFLOW_URL

    run = context["dag_run"]
    base = conf.get("api", "base_url", fallback="http://localhost:8080/").rstrip("/")
    page = f"{base}/dags/{quote(run.dag_id, safe='')}/runs/{quote(run.run_id, safe='')}"
    return {"airflow.dag_id": run.dag_id, "airflow.run_id": run.run_id, TAG_AIRFLOW_URL: page}


def take(kind: type[Value], found: Any) -> Value:
    """The value of another task's output."""
    return msgspec.convert(found, kind)


def give(value: msgspec.Struct) -> dict[str, Any]:
    """A value as the output of this task."""
    plain: dict[str, Any] = msgspec.to_builtins(value)
    return plain


@contextmanager
def no_retry_for_bad_input() -> Iterator[None]:
    """Turns errors that a second try would only repeat into ones that Airflow does not retry."""
    try:
        yield
    except (SpecError, DataError, JobFailedError) as error:
        raise AirflowFailException(str(error)) from error


__all__ = [
    "AirflowException",
    "AirflowFailException",
    "ElastrecOperator",
    "give",
    "no_retry_for_bad_input",
    "owner_key",
    "owner_token",
    "run_tags",
    "take",
    "watched",
]
