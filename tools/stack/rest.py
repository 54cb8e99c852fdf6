"""The few calls of Airflow's REST API that start and follow a DAG run."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlencode


class AirflowApiError(Exception):
    """The API refused a call; the message is its answer.

    Attributes:
        status: of HTTP; None: no answer.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class AirflowClient:
    """A client of an Airflow that gives tokens without a log-in, such as `ServiceStack`.

    Args:
        url: address of the core API server.
    """

    def __init__(self, url: str, timeout_seconds: float = 30.0) -> None:
        self.url = url.rstrip("/")
        self._timeout_seconds = timeout_seconds
        self._token = ""
        # Loopback is accessed directly even if the user's environment names a proxy.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def unpause(self, dag_id: str) -> None:
        """Unpauses the DAG."""
        self.call("PATCH", f"/dags/{dag_id}", {"is_paused": False})

    def pause(self, dag_id: str) -> None:
        """Pauses the DAG."""
        self.call("PATCH", f"/dags/{dag_id}", {"is_paused": True})

    def has_dag(self, dag_id: str) -> bool:
        """Whether the DAG file has been read."""
        answer = self.call("GET", f"/dags?{urlencode({'dag_id_pattern': dag_id})}")
        return any(dag["dag_id"] == dag_id for dag in answer["dags"])

    def import_errors(self) -> list[str]:
        """Why DAG files could not be read."""
        return [error["stack_trace"] for error in self.call("GET", "/importErrors")["import_errors"]]

    def trigger(self, dag_id: str, conf: Mapping[str, Any], logical_date: str | None = None) -> str:
        """Starts a run and returns its id.

        Raises:
            AirflowApiError: a parameter is wrong, or a run of this logical date exists.
        """
        body = {"conf": dict(conf), "logical_date": logical_date}
        return str(self.call("POST", f"/dags/{dag_id}/dagRuns", body)["dag_run_id"])

    def end_active_runs(self, dag_id: str) -> list[str]:
        """Marks the DAG's unfinished runs failed, which stops their jobs; returns their ids."""
        ended = []
        for state in ("running", "queued"):
            for run in self.call("GET", f"/dags/{dag_id}/dagRuns?state={state}")["dag_runs"]:
                self.call("PATCH", self._run(dag_id, run["dag_run_id"]), {"state": "failed"})
                ended.append(str(run["dag_run_id"]))
        return ended

    def runs(self, dag_id: str) -> dict[str, str]:
        """State of each of the last twenty runs by its id, the oldest first."""
        answer = self.call("GET", f"/dags/{dag_id}/dagRuns?order_by=-run_after&limit=20")["dag_runs"]
        return {run["dag_run_id"]: str(run["state"]) for run in reversed(answer)}

    def run_state(self, dag_id: str, run_id: str) -> str:
        """queued, running, success or failed."""
        return str(self.call("GET", self._run(dag_id, run_id))["state"])

    def tasks(self, dag_id: str, run_id: str) -> dict[str, dict[str, Any]]:
        """The task instances of a run by task id."""
        answer = self.call("GET", f"{self._run(dag_id, run_id)}/taskInstances")["task_instances"]
        return {task["task_id"]: task for task in answer}

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
        """What a task returned, or pushed under a key; None while there is nothing."""
        place = f"{self._run(dag_id, run_id)}/taskInstances/{task_id}/xcomEntries/{key}"
        try:
            return self.call("GET", f"{place}?deserialize=true&map_index={map_index}")["value"]
        except AirflowApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    def log(self, dag_id: str, run_id: str, task_id: str, try_number: int, map_index: int = -1) -> str:
        """The log of one try of a task as text."""
        place = f"{self._run(dag_id, run_id)}/taskInstances/{task_id}/logs/{try_number}"
        answer = self.call("GET", f"{place}?full_content=true&map_index={map_index}")["content"]
        return "\n".join(_log_lines(answer))

    def clear(self, dag_id: str, run_id: str, task_ids: list[str]) -> None:
        """Clears tasks of a run and what comes after them, as the button does."""
        body = {"dry_run": False, "dag_run_id": run_id, "task_ids": task_ids, "only_failed": False}
        self.call("POST", f"/dags/{dag_id}/clearTaskInstances", {**body, "include_downstream": True})

    def set_task_state(self, dag_id: str, run_id: str, task_id: str, state: str, map_index: int = -1) -> None:
        """Marks a task failed or successful, as the button does."""
        place = task_id if map_index < 0 else f"{task_id}/{map_index}"
        self.call("PATCH", f"{self._run(dag_id, run_id)}/taskInstances/{place}", {"new_state": state})

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One call under `/api/v2`.

        Raises:
            AirflowApiError: the answer's status is 400 or above, or there is no answer.
        """
        if not self._token:
            self._token = self._send("GET", "/auth/token", None, "")["access_token"]
        return self._send(method, f"/api/v2{path}", body, self._token)

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None, token: str) -> dict[str, Any]:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with self._opener.open(request, timeout=self._timeout_seconds) as answer:
                content: dict[str, Any] = json.loads(answer.read() or b"{}")
                return content
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            raise AirflowApiError(f"{method} {path}: {error.code} {said}", error.code) from None
        except OSError as error:
            raise AirflowApiError(f"{method} {path}: {error}") from None

    @staticmethod
    def _run(dag_id: str, run_id: str) -> str:
        return f"/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}"


def _log_lines(content: list[Any]) -> Iterator[str]:
    for line in content:
        if isinstance(line, str):
            yield line
            continue
        yield str(line.get("event", ""))
        for error in line.get("error_detail") or ():
            yield f"{error.get('exc_type')}: {error.get('exc_value')}"
