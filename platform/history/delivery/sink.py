"""How points and tags reach a tracking server.

Over HTTP this speaks MLflow's REST API itself: importing mlflow costs 3 s of CPU and 100 MB, which a job master of a
tenth of a core has not got. Other tracking URIs (`sqlite:///...`) go through mlflow's own client.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from elastrec.platform.history.points import Point, json_number
from elastrec.platform.history.records import TAG_PHASE
from elastrec.platform.specs.errors import CollisionError, HistoryError
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.specs.text.uris import credentials, without_credentials

POINTS_PER_CALL = 1000
"""MLflow's limit of metrics and tags per request, both together."""
_LONGEST_ANSWER_BYTES = 1 << 20
_LONGEST_RUN_BYTES = 1 << 26
"""Of a run with its parameters, tags and last metrics."""
_FINAL_PHASES = frozenset(phase.value for phase in Phase if phase.is_final)


class RefusedError(HistoryError):
    """The server read the request and will never take it; sending it again is useless."""


class RunGoneError(HistoryError):
    """Somebody has deleted the run. It may be restored, or the job may get another one."""


class Sink(Protocol):
    """Where a Reporter sends to; called by one thread."""

    def send(self, run_id: str, points: Sequence[Point], timeout_seconds: float, tags: Mapping[str, str]) -> None:
        """Stores at most POINTS_PER_CALL points and tags; the same points twice are stored once.

        Tags are those of a job that runs. If its end was written to the run, they are dropped: a master may learn only
        later that another one has taken its job over and ended it.

        Raises:
            RefusedError: the server will never take this.
            RunGoneError: it takes nothing for this run.
            CollisionError: its database refused; another try may succeed.
            HistoryError: it could not be reached or had a passing problem.
        """
        ...


def open_sink(tracking_uri: str) -> Sink:
    """The sink of a tracking URI. Nothing is contacted or imported yet."""
    if tracking_uri.startswith(("http://", "https://")):
        return RestSink(tracking_uri)
    return ClientSink(tracking_uri)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Makes a redirect an error. urllib follows it with a GET that has lost the points, and a page for logging in
    answers that with 200."""

    def redirect_request(self, *request: Any) -> None:
        return None


class RestSink:
    """MLflow's `runs/log-batch` over HTTP.

    Credentials are those of the URI (`http://user:password@host`), else those of MLflow's own variables:
    `MLFLOW_TRACKING_TOKEN`, or `MLFLOW_TRACKING_USERNAME` and `MLFLOW_TRACKING_PASSWORD`.
    """

    def __init__(self, tracking_uri: str) -> None:
        self._runs = f"{without_credentials(tracking_uri).rstrip('/')}/api/2.0/mlflow/runs"
        self._headers = {"Content-Type": "application/json", **_authorization(tracking_uri, os.environ)}
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=tls_context(os.environ)), _NoRedirect
        )

    def send(self, run_id: str, points: Sequence[Point], timeout_seconds: float, tags: Mapping[str, str]) -> None:
        deadline = time.monotonic() + timeout_seconds
        if tags and self._has_ended(run_id, timeout_seconds):
            tags = {}
            if not points:
                return
        body = {
            "run_id": run_id,
            "metrics": [
                {
                    "key": point.name,
                    "value": json_number(point.value),
                    "timestamp": int(point.unix_seconds * 1000),
                    "step": point.step,
                }
                for point in points
            ],
            "tags": [{"key": key, "value": value} for key, value in tags.items()],
        }
        self._ask("log-batch", json.dumps(body).encode(), max(0.1, deadline - time.monotonic()))

    def _has_ended(self, run_id: str, timeout_seconds: float) -> bool:
        answer = self._ask(f"get?{urllib.parse.urlencode({'run_id': run_id})}", None, timeout_seconds)
        try:
            run = answer["run"]
            tags = {tag["key"]: tag["value"] for tag in run["data"].get("tags", ())}
            return _has_ended(run["info"]["status"], tags)
        except (KeyError, TypeError, AttributeError) as error:
            raise HistoryError(f"{self._runs} answered, but not as MLflow does: {error!r} is not in its run") from error

    def _ask(self, call: str, body: bytes | None, timeout_seconds: float) -> dict[str, Any]:
        """The answer to a call: with a body a POST, otherwise a GET. Raises the errors of `send`."""
        url = f"{self._runs}/{call}"
        request = urllib.request.Request(url, body, self._headers, method="GET" if body is None else "POST")
        try:
            with self._opener.open(request, timeout=timeout_seconds) as answer:
                content = answer.read(_LONGEST_ANSWER_BYTES if body is not None else _LONGEST_RUN_BYTES)
        except urllib.error.HTTPError as error:
            with error:
                words = error.read(_LONGEST_ANSWER_BYTES).decode(errors="replace")
            message = f"{url} answered {error.code}: {words[:2000]}"
            raise _kind(error.code, _error_code(words), words)(message) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise HistoryError(f"{url} cannot be reached: {error}") from error
        found = _object(content)
        if found is None:
            words = content[:200].decode(errors="replace")
            raise HistoryError(f"{url} answered, but not as MLflow does; a page for logging in? {words}")
        return found


def _has_ended(status: str, tags: Mapping[str, str]) -> bool:
    """Whether the end of the job was written to a run. Its final phase is written first, its status last."""
    return status not in ("RUNNING", "SCHEDULED") or tags.get(TAG_PHASE) in _FINAL_PHASES


def tls_context(environment: Mapping[str, str]) -> ssl.SSLContext | None:
    """How an https server is verified: as mlflow's client does it by MLflow's own variables; None: as Python does.

    The variables are `MLFLOW_TRACKING_INSECURE_TLS`, `MLFLOW_TRACKING_SERVER_CERT_PATH` (a file or folder of
    certificates) and `MLFLOW_TRACKING_CLIENT_CERT_PATH`.

    Raises:
        HistoryError: a file cannot be read.
    """
    trusted = environment.get("MLFLOW_TRACKING_SERVER_CERT_PATH") or None
    own = environment.get("MLFLOW_TRACKING_CLIENT_CERT_PATH") or None
    is_insecure = environment.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("true", "1")
    if not (trusted or own or is_insecure):
        return None
    try:
        is_folder = trusted is not None and Path(trusted).is_dir()
        context = ssl.create_default_context(
            cafile=None if is_folder else trusted, capath=trusted if is_folder else None
        )
        if own:
            context.load_cert_chain(own)
    except OSError as error:
        files = " and ".join(file for file in (trusted, own) if file)
        raise HistoryError(f"the certificates for MLflow cannot be read: {files}: {error}") from error
    if is_insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _object(answer: str | bytes) -> dict[str, Any] | None:
    """None if it is something else."""
    try:
        content = json.loads(answer)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def _error_code(answer: str) -> str:
    """MLflow's code of an error; empty if the answer is not MLflow's, but that of a proxy before it."""
    return str((_object(answer) or {}).get("error_code", ""))


def _kind(status: int, error_code: str, words: str) -> type[HistoryError]:
    """The error for an answer of MLflow with this text."""
    if error_code == "RESOURCE_DOES_NOT_EXIST" or (
        # MLflow has no code of its own for a run that is deleted and may still be restored.
        error_code == "INVALID_PARAMETER_VALUE" and "must be in" in words and "'active'" in words
    ):
        return RunGoneError
    if error_code == "BAD_REQUEST":
        # With it MLflow reports errors of its database, for example that all connections are in use; wrong values have
        # another code.
        return CollisionError
    return RefusedError if status in (400, 404) and error_code else HistoryError


def _authorization(tracking_uri: str, environment: Mapping[str, str]) -> dict[str, str]:
    if named := credentials(tracking_uri):
        return _basic(*named)
    if token := environment.get("MLFLOW_TRACKING_TOKEN"):
        return {"Authorization": f"Bearer {token}"}
    user, password = environment.get("MLFLOW_TRACKING_USERNAME"), environment.get("MLFLOW_TRACKING_PASSWORD")
    if user and password:
        return _basic(user, password)
    return {}


def _basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


class ClientSink:
    """Through mlflow's client, imported at the first call."""

    def __init__(self, tracking_uri: str) -> None:
        self._tracking_uri = tracking_uri
        self._client: Any = None

    def send(self, run_id: str, points: Sequence[Point], timeout_seconds: float, tags: Mapping[str, str]) -> None:
        del timeout_seconds  # a local database has its own
        from mlflow.entities import Metric, RunTag
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        try:
            if self._client is None:
                self._client = MlflowClient(self._tracking_uri)
            if tags:
                run = self._client.get_run(run_id)
                if _has_ended(run.info.status, run.data.tags):
                    tags = {}
            self._client.log_batch(
                run_id,
                metrics=[
                    Metric(point.name, point.value, int(point.unix_seconds * 1000), point.step) for point in points
                ],
                tags=[RunTag(*tag) for tag in tags.items()],
            )
        except MlflowException as error:
            kind = _kind(error.get_http_status_code(), error.error_code, str(error))
            raise kind(f"{self._tracking_uri}: {error}") from error
        except Exception as error:
            # Database drivers raise what they like; the caller's training must not know.
            raise HistoryError(f"{self._tracking_uri}: {type(error).__name__}: {error}") from error
