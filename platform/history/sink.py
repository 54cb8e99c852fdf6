"""How points reach a tracking server.

Over HTTP this speaks MLflow's REST API itself: importing mlflow costs 3 s of CPU and 100 MB, which a job master of a
tenth of a core has not got. Other tracking URIs (`sqlite:///...`) go through mlflow's own client.
"""

from __future__ import annotations

import base64
import http.client
import json
import math
import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from elastrec.platform.history.points import Point
from elastrec.platform.specs.errors import HistoryError
from elastrec.platform.specs.text.uris import credentials, without_credentials

POINTS_PER_CALL = 1000
"""MLflow's limit of metrics per request."""


class RefusedError(HistoryError):
    """The server read the request and will never take it; sending it again is useless."""


class Sink(Protocol):
    """Where a Reporter sends to; called by one thread."""

    def send(self, run_id: str, points: Sequence[Point], timeout_seconds: float) -> None:
        """Stores at most POINTS_PER_CALL points; the same points twice are stored once.

        Raises:
            RefusedError: the server will never take this.
            HistoryError: it could not be reached or had a passing problem.
        """
        ...


def open_sink(tracking_uri: str) -> Sink:
    """The sink of a tracking URI. Nothing is contacted or imported yet."""
    if tracking_uri.startswith(("http://", "https://")):
        return RestSink(tracking_uri)
    return ClientSink(tracking_uri)


def _number(value: float) -> float | str:
    # Protobuf's JSON has these as words.
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


class RestSink:
    """MLflow's `runs/log-batch` over HTTP.

    Credentials are those of the URI (`http://user:password@host`), else those of MLflow's own variables:
    `MLFLOW_TRACKING_TOKEN`, or `MLFLOW_TRACKING_USERNAME` and `MLFLOW_TRACKING_PASSWORD`.
    """

    def __init__(self, tracking_uri: str) -> None:
        self._url = f"{without_credentials(tracking_uri).rstrip('/')}/api/2.0/mlflow/runs/log-batch"
        self._headers = {"Content-Type": "application/json", **_authorization(tracking_uri, os.environ)}

    def send(self, run_id: str, points: Sequence[Point], timeout_seconds: float) -> None:
        body = {
            "run_id": run_id,
            "metrics": [
                {
                    "key": point.name,
                    "value": _number(point.value),
                    "timestamp": int(point.unix_seconds * 1000),
                    "step": point.step,
                }
                for point in points
            ],
        }
        request = urllib.request.Request(self._url, json.dumps(body).encode(), self._headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=timeout_seconds) as answer:
                answer.read()
        except urllib.error.HTTPError as error:
            with error:
                words = error.read(2000).decode(errors="replace")
            message = f"{self._url} answered {error.code}: {words}"
            if error.code in (400, 404):
                raise RefusedError(message) from error
            raise HistoryError(message) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise HistoryError(f"{self._url} cannot be reached: {error}") from error


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

    def send(self, run_id: str, points: Sequence[Point], timeout_seconds: float) -> None:
        del timeout_seconds  # a local database has its own
        from mlflow.entities import Metric
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        try:
            if self._client is None:
                self._client = MlflowClient(self._tracking_uri)
            self._client.log_batch(
                run_id,
                metrics=[
                    Metric(point.name, point.value, int(point.unix_seconds * 1000), point.step) for point in points
                ],
            )
        except MlflowException as error:
            kind = RefusedError if error.get_http_status_code() in (400, 404) else HistoryError
            raise kind(f"{self._tracking_uri}: {error}") from error
        except Exception as error:
            # Database drivers raise what they like; the caller's training must not know.
            raise HistoryError(f"{self._tracking_uri}: {type(error).__name__}: {error}") from error
