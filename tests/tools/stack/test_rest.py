"""Calls of Airflow's REST API: the HTTP status distinguishes missing objects from errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tools.stack.rest import AirflowApiError, AirflowClient


class Airflow(HTTPServer):
    status = 404


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        is_token = self.path.startswith("/auth")
        assert isinstance(self.server, Airflow)
        body = b'{"access_token": "x"}' if is_token else b"the run of 404 rows"
        self.send_response(200 if is_token else self.server.status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *of: object) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[Airflow]:
    with Airflow(("127.0.0.1", 0), _Answer) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_missing_output_is_none_and_an_error_is_raised(server: Airflow) -> None:
    client = AirflowClient(f"http://127.0.0.1:{server.server_port}")
    assert client.xcom("dag", "run", "task") is None
    server.status = 500
    with pytest.raises(AirflowApiError, match="500 the run of 404 rows") as error:
        client.xcom("dag", "run", "task")
    assert error.value.status == 500
    with pytest.raises(AirflowApiError) as error:
        AirflowClient("http://127.0.0.1:1").pause("dag")
    assert error.value.status is None
