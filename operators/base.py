"""Code shared by the operators: the platform, waiting for a job, owner tokens, tags and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import msgspec
from airflow.sdk import BaseOperator, BaseOperatorLink
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTerminated, AirflowTaskTimeout
from pydantic import TypeAdapter

from elastrec.operators import settings
from elastrec.operators.hook import ElastrecHook, hide_passwords
from elastrec.operators.links import MlflowRunLink
from elastrec.operators.triggers import TIMED_OUT, JobTrigger
from elastrec.platform.specs.errors import DataError, JobFailedError, SpecError

if TYPE_CHECKING:
    from datetime import timedelta

    from airflow.sdk import Context
    from jinja2 import Environment

    from elastrec.platform.jobs import Platform

Value = TypeVar("Value", bound=msgspec.Struct)
BAD_INPUT = (SpecError, DataError, JobFailedError)
"""Errors for which a retry would fail in the same way."""


class ElastrecOperator(BaseOperator):
    """Base of the operators.

    The output of a task is a plain JSON object (`operators.values`); the input argument of a task is the `.output` of
    the operator before it.

    Args:
        elastrec_conn_id: the connection that names cluster, tracking server and work folder; a template.
    """

    template_fields: Sequence[str] = ("elastrec_conn_id",)
    ui_color = "#e8f1fb"
    operator_extra_links: tuple[BaseOperatorLink, ...] = (MlflowRunLink(),)

    def __init__(
        self,
        *,
        elastrec_conn_id: str = settings.DEFAULT_CONNECTION_ID,
        retries: int = settings.RETRIES,
        retry_delay: Any = settings.RETRY_DELAY,
        retry_exponential_backoff: Any = settings.RETRY_BACKOFF,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            retries=retries, retry_delay=retry_delay, retry_exponential_backoff=retry_exponential_backoff, **kwargs
        )
        self.elastrec_conn_id = elastrec_conn_id

    @cached_property
    def _hook(self) -> ElastrecHook:
        return ElastrecHook(self.elastrec_conn_id)

    def render_template_fields(self, context: Context, jinja_env: Environment | None = None) -> None:
        """Jobs among the rendered fields may hold passwords, which Airflow's page of them is not to show."""
        super().render_template_fields(context, jinja_env)
        hide_passwords([getattr(self, field, None) for field in self.template_fields])

    @property
    def platform(self) -> Platform:
        """The platform of the connection."""
        return self._hook.platform


class WaitingOperator(ElastrecOperator):
    """Base of operators that wait for a job; a method that `wait_for` names is called with the trigger's event.

    Args:
        deferrable: whether to wait in the triggerer, which occupies no worker slot, or in the task itself; the default
            is Airflow's `[operators] default_deferrable`.
    """

    def __init__(
        self,
        *,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.deferrable = deferrable

    def wait_for(self, trigger: JobTrigger, context: Context, method_name: str = "resume") -> Any:
        """Defers to the trigger, or runs it here; calls `method_name` with its event, and returns the result.

        The trigger itself checks the task's `execution_timeout` (`watched`), because Airflow would fail a deferred
        task without stopping the job.
        """
        if self.deferrable:
            self.defer(trigger=trigger, method_name=method_name)
        try:
            event = asyncio.run(trigger.first_event())
        except AirflowTaskTimeout:
            event = trigger.event_of(TIMED_OUT, over_time(self.execution_timeout))
        return getattr(self, method_name)(context, event)


class StartingTask:
    """Ends a start of pods that is under way when its task is ended.

    Airflow lets a task go on after `on_kill`; otherwise it would start pods that nobody stops.
    """

    _is_ended = False
    _is_starting = False

    @contextmanager
    def starting(self) -> Iterator[None]:
        """A start of pods.

        Raises:
            AirflowTaskTerminated: the task was ended before, or is ended meanwhile.
        """
        self._is_starting = True
        try:
            if self._is_ended:
                raise AirflowTaskTerminated("the task was ended before it started its pods")
            yield
        finally:
            self._is_starting = False

    def end(self) -> None:
        """To be called at the end of `on_kill`.

        Raises:
            AirflowTaskTerminated: a start is under way.
        """
        self._is_ended = True
        if self._is_starting:
            raise AirflowTaskTerminated("the task was ended while it started its pods")


def over_time(limit: timedelta | None) -> str:
    """The reason for stopping a job whose task has exceeded its `execution_timeout`."""
    return f"its task has run for longer than its execution_timeout of {limit}"


def watched(task: ElastrecOperator, context: Context, job_id: str, owner: str) -> dict[str, Any]:
    """The arguments of all triggers of a job: the job, how to reach it, and the task that waits for it."""
    this, limit = context["ti"], task.execution_timeout
    return {
        "job_id": job_id,
        "conn_id": task.elastrec_conn_id,
        "owner": owner,
        "dag_id": this.dag_id,
        "run_id": this.run_id,
        "watched_task_id": this.task_id,
        "map_index": _map_index(context),
        "try_number": this.try_number,
        "deadline": (this.start_date + limit).timestamp() if limit and this.start_date else None,
        "over_time": over_time(limit) if limit else "",
    }


def owner_token(context: Context) -> str:
    """A token of this try of this task, with which the task may stop the job until another try takes the job over."""
    return f"{_task_key(context)}/{context['ti'].try_number}"


def owner_tokens(context: Context) -> list[str]:
    """The tokens of this try of this task and of its earlier tries, the newest first."""
    return [f"{_task_key(context)}/{number}" for number in range(context["ti"].try_number, 0, -1)]


def plan_id(context: Context) -> str:
    """The id of this task's request to a master: all tries of the task make the same request.

    If a user clears a task that has ended, the request is to be made again. Airflow then raises the task's `max_tries`.
    """
    return f"{_task_key(context)}/up to try {context['ti'].max_tries + 1}"


def _task_key(context: Context) -> str:
    task = context["ti"]
    return f"{task.dag_id}/{task.run_id}/{_task_name(context)}"


def _task_name(context: Context) -> str:
    task, index = context["ti"], _map_index(context)
    return task.task_id if index < 0 else f"{task.task_id}[{index}]"


def _map_index(context: Context) -> int:
    """The index of a mapped task instance, -1 for others."""
    index = context["ti"].map_index
    return -1 if index is None else index


def owner_key(context: Context) -> str:
    """Identifies the job by the DAG, its logical date (or the run, if it has none), and the task that created the job.

    So two jobs with the same name in one DAG run are different jobs, and all tries of a task refer to the same job.
    """
    run = context["dag_run"]
    moment = run.logical_date.isoformat() if run.logical_date else run.run_id
    return f"{run.dag_id}/{moment}/{_task_name(context)}"


def run_tags(context: Context) -> dict[str, str]:
    """Tags of the job's run in MLflow that refer to the DAG run."""
    from elastrec.platform.history.records import TAG_AIRFLOW_URL

    run = context["dag_run"]
    base = conf.get("api", "base_url", fallback="http://localhost:8080/").rstrip("/")
    page = f"{base}/dags/{quote(run.dag_id, safe='')}/runs/{quote(run.run_id, safe='')}"
    return {"airflow.dag_id": run.dag_id, "airflow.run_id": run.run_id, TAG_AIRFLOW_URL: page}


def log_tag(context: Context) -> dict[str, str]:
    """The tag by which the job's run in MLflow leads to the log of this try of this task."""
    from elastrec.platform.history.records import TAG_AIRFLOW_LOG

    return {TAG_AIRFLOW_LOG: context["ti"].log_url}


def take(kind: type[Value], output: Any) -> Value:
    """The value of another task's output.

    Raises:
        AirflowFailException: there is no output, because the task was marked successful without having run; or the
            output is of another kind, or of another version of elastrec.
    """
    if output is None:
        raise AirflowFailException(
            f"the task before this one has no output, of which this task needs the {kind.__name__}: it was marked "
            "successful or skipped, or its XCom was deleted. Clear that task, and the following ones"
        )
    # Mapped tasks render their fields without `render_template_fields`.
    hide_passwords(output)
    try:
        return msgspec.convert(_job_as_text(output), kind)
    except msgspec.ValidationError as error:
        raise AirflowFailException(
            f"the output of the task before this one is no {kind.__name__}: {error}. If another version of elastrec "
            "wrote it, clear that task, and the following ones"
        ) from error


def give(value: msgspec.Struct) -> dict[str, Any]:
    """A value as the output of this task. Jobs are JSON objects instead of texts, because people read them on Airflow's
    XCom page."""
    output: dict[str, Any] = _job_as_object(msgspec.to_builtins(value))
    hide_passwords(output)
    return output


_JOB_TEXT, _JOB_OBJECT = "job_json", "training_job"
# Writes numbers as `job_to_json` does, because a running job is recognised by the digest of its text.
_AS_JOBS_ARE: TypeAdapter[Any] = TypeAdapter(Any)


def _job_as_object(plain: Any) -> Any:
    return _with_jobs(plain, _JOB_TEXT, _JOB_OBJECT, msgspec.json.decode)


def _job_as_text(output: Any) -> Any:
    return _with_jobs(output, _JOB_OBJECT, _JOB_TEXT, lambda job: _AS_JOBS_ARE.dump_json(job).decode())


def _with_jobs(value: Any, before: str, after: str, convert: Callable[[Any], Any]) -> Any:
    """A copy of a value in which each job, at any depth, is converted and has another key."""
    if not isinstance(value, dict):
        return value
    return {
        after if key == before else key: convert(item) if key == before else _with_jobs(item, before, after, convert)
        for key, item in value.items()
    }


def extended(kind: type[Value], value: msgspec.Struct, **more: Any) -> Value:
    """A value of `kind` with the fields of a value of its base class, and further fields."""
    return kind(**{name: getattr(value, name) for name in value.__struct_fields__}, **more)


@contextmanager
def no_retry_for_bad_input() -> Iterator[None]:
    """Converts errors of BAD_INPUT to errors that Airflow does not retry."""
    try:
        yield
    except BAD_INPUT as error:
        raise AirflowFailException(str(error)) from error


__all__ = [
    "BAD_INPUT",
    "AirflowException",
    "AirflowFailException",
    "ElastrecOperator",
    "WaitingOperator",
    "extended",
    "give",
    "log_tag",
    "no_retry_for_bad_input",
    "owner_key",
    "owner_token",
    "plan_id",
    "run_tags",
    "take",
    "watched",
]
