"""Connections to an experiment of MLflow: its client, no server, a hanging one, one that needs a password, a proxy."""

from __future__ import annotations

import base64
import contextlib
import http.server
import os
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from mlflow import MlflowClient

from elastrec.platform.history import History
from elastrec.platform.history.connection import Connection, answers, client_loaded_beside
from elastrec.platform.history.delivery.sink import RefusedError, RestSink
from elastrec.platform.history.points import Point
from elastrec.platform.jobs.types import Allocation, Prepared
from elastrec.platform.specs.errors import HistoryError
from elastrec.platform.specs.metrics import Phase
from tests.certificates import certify

EXPERIMENT = "without artifacts"
DISABLE = "MLFLOW_DISABLE_TELEMETRY"
CI_OR_TESTS = ("CI", "DO_NOT_TRACK", "GITHUB_ACTIONS", "PYTEST_CURRENT_TEST")
"""Where MLflow sends no usage data anyway."""


# Every module of a room loads the room first, so that MLflow, which both load when they need it, comes after it.
@pytest.mark.parametrize(
    ("room", "chosen"), [("platform.history", None), ("platform.history", "false"), ("trainers.export", None)]
)
def test_mlflow_sends_no_usage_data_unless_the_user_wants_it(room: str, chosen: str | None) -> None:
    variables = {name: value for name, value in os.environ.items() if name not in (DISABLE, *CI_OR_TESTS)}
    if chosen is not None:
        variables[DISABLE] = chosen
    # The client is only made: it sends nothing before one of MLflow's functions is called.
    code = f"""
        import os
        import elastrec.{room}
        from mlflow.telemetry.client import get_telemetry_client

        print(os.environ["{DISABLE}"], get_telemetry_client() is None)
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=variables, check=True
    )
    assert done.stdout.split()[-2:] == (["true", "True"] if chosen is None else ["false", "False"])


def test_files_of_runs_are_beside_the_database_file_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    uri = f"sqlite:///{home}/mlflow.db"
    experiment = MlflowClient(uri).get_experiment(Connection(uri, "clicks")._experiment_id)
    assert experiment.artifact_location == (home / "artifacts").as_uri()
    assert list(elsewhere.iterdir()) == []


def test_a_call_to_a_server_that_accepts_and_never_answers_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    # Set and removed: what the connection sets is removed with it after the test.
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_TIMEOUT")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://user:secret@127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(HistoryError, match=r"http://user:\*\*\*@127") as caught:
            _ = Connection(uri, "clicks", request_seconds=1)._experiment_id
        # MLflow's own patience is 120 s.
        assert time.monotonic() - began < 60
    assert "secret" not in str(caught.value)


@contextlib.contextmanager
def guarded_server(certificates: Path | None = None) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """A server that answers those who know the password; its URI with the password, and (path, authorization) seen."""
    seen: list[tuple[str, str]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            seen.append((self.path, self.headers.get("Authorization", "")))
            is_known = seen[-1][1] == "Basic " + base64.b64encode(b"user:sec/ret").decode()
            self.send_response(200 if is_known else 401)
            self.end_headers()
            self.wfile.write(b"{}")

        do_GET = do_POST = _answer

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if certificates is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificates / "tls.crt", certificates / "tls.key")
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            scheme = "http" if certificates is None else "https"
            yield f"{scheme}://user:sec%2Fret@127.0.0.1:{server.server_address[1]}", seen
        finally:
            server.shutdown()
            thread.join()


def test_the_password_of_a_tracking_uri_is_sent_with_every_point() -> None:
    with guarded_server() as (uri, seen):
        assert answers(uri)
        RestSink(uri).send("run", [Point("loss", 0.5, 1, 0.0)], 10, {})
        assert seen[-1][0] == "/api/2.0/mlflow/runs/log-batch"
        with pytest.raises(HistoryError, match="answered 401") as refused:
            RestSink(uri.replace("sec%2F", "wrong-")).send("run", [Point("loss", 0.5, 1, 0.0)], 10, {})
        assert "wrong-" not in str(refused.value)


@pytest.mark.parametrize("is_redirect", [True, False])
def test_points_count_as_delivered_only_if_mlflow_itself_says_so(is_redirect: bool) -> None:
    """A proxy shows people who are not known a page for logging in, by a redirect or in place of the answer."""

    class Proxy(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            if is_redirect:
                self.send_response(302)
                self.send_header("Location", "/login")
                self.end_headers()
            else:
                self.do_GET()

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>who are you?</html>")

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            with pytest.raises(HistoryError, match="answered 302" if is_redirect else "who are you") as caught:
                RestSink(f"http://127.0.0.1:{server.server_address[1]}").send(
                    "run", [Point("loss", 0.5, 1, 0.0)], 10, {}
                )
        finally:
            server.shutdown()
            thread.join()
    assert not isinstance(caught.value, RefusedError), "another try may succeed"


def test_mlflows_variables_for_certificates_hold_for_points_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certify(tmp_path)
    point = [Point("loss", 0.5, 1, 0.0)]
    with guarded_server(tmp_path) as (uri, _):
        assert uri.startswith("https://") and not answers(uri)
        with pytest.raises(HistoryError, match="CERTIFICATE_VERIFY_FAILED"):
            RestSink(uri).send("run", point, 10, {})
        monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(tmp_path / "ca.pem"))
        assert answers(uri)
        RestSink(uri).send("run", point, 10, {})
        monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(tmp_path / "absent.pem"))
        with pytest.raises(HistoryError, match=r"certificates for MLflow cannot be read: .*absent\.pem"):
            RestSink(uri)
        monkeypatch.delenv("MLFLOW_TRACKING_SERVER_CERT_PATH")
        monkeypatch.setenv("MLFLOW_TRACKING_INSECURE_TLS", "true")
        assert answers(uri)
        RestSink(uri).send("run", point, 10, {})


@pytest.fixture(params=["s3://nowhere/runs", "folder"])
def unwritable(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    """MLflow in a file, with an experiment whose artifacts cannot be written."""
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret"), ("AWS_MAX_ATTEMPTS", "1"),
        ("MLFLOW_S3_ENDPOINT_URL", "http://127.0.0.1:9"),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    (tmp_path / "file").write_text("no folder")
    place = request.param if request.param != "folder" else (tmp_path / "file" / "artifacts").as_uri()
    connection = Connection(f"sqlite:///{tmp_path}/mlflow.db", EXPERIMENT)
    connection._client.create_experiment(EXPERIMENT, place)
    return connection._client


def test_a_job_is_not_started_without_an_artifact_store_and_the_error_names_it(
    unwritable: MlflowClient, make_prepared: Callable[..., Prepared], allocation: Allocation
) -> None:
    with pytest.raises(HistoryError, match=r"could not describe job clicks-20260101 at sqlite:.*(nowhere|file)"):
        History(unwritable.tracking_uri, EXPERIMENT).start_run(make_prepared(), allocation)


def test_a_run_is_closed_without_the_artifacts_that_cannot_be_written(
    unwritable: MlflowClient, make_prepared: Callable[..., Prepared], allocation: Allocation
) -> None:
    history = History(unwritable.tracking_uri, EXPERIMENT)
    with pytest.raises(HistoryError):
        history.start_run(make_prepared(), allocation)
    run_id = history.open_run("clicks-20260101")
    history.finish_run(run_id, Phase.FAILED, "ValueError: bad feature")
    run = unwritable.get_run(run_id)
    assert (run.info.status, run.data.tags["elastrec.phase"]) == ("FAILED", "Failed")
    assert run.data.tags["elastrec.reason"] == "ValueError: bad feature"


def test_a_run_that_was_described_half_is_described_to_its_end_also_by_a_caller_with_other_sizes(
    tmp_path: Path,
    make_prepared: Callable[..., Prepared],
    allocation: Allocation,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The artifact store failed, and is repaired; meanwhile, similar jobs have ended, from which the sizes come."""

    def refuse(*values: object) -> None:
        raise OSError("the store is full")

    history = History(f"sqlite:///{tmp_path}/mlflow.db", EXPERIMENT)
    with monkeypatch.context() as patch, pytest.raises(HistoryError, match="full"):
        patch.setattr(MlflowClient, "log_artifact", refuse)
        history.start_run(make_prepared(), allocation)
    more = msgspec.structs.replace(allocation, workers=allocation.workers + 1)
    run_id = history.start_run(make_prepared(), more)
    assert history.record(run_id).granted.workers == allocation.workers
    assert run_id == history.start_run(make_prepared(), allocation)


def test_an_error_of_this_program_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(KeyError), Connection("http://127.0.0.1:9", EXPERIMENT)._explained("read"):
        raise KeyError("a mistake")


def test_a_database_whose_driver_is_not_installed_is_an_error_of_one_line() -> None:
    history = History("mssql+nosuchdriver://user:s3cret@host/mlflow", EXPERIMENT)
    with pytest.raises(HistoryError, match=r"could not .* at mssql\+nosuchdriver://user:\*\*\*@host") as caught:
        history.job_records()
    assert "s3cret" not in str(caught.value)


def test_a_client_of_a_store_that_is_not_installed_is_an_error_of_one_line() -> None:
    connection = Connection("http://127.0.0.1:9", EXPERIMENT)
    with pytest.raises(HistoryError, match="No module named 'google'"), connection._explained("write"):
        raise ModuleNotFoundError("No module named 'google'")


def test_mlflow_is_there_when_the_other_work_is_done() -> None:
    code = (
        "import sys\n"
        "from elastrec.platform.history.connection import client_loaded_beside\n"
        "before = 'mlflow' in sys.modules\n"
        "with client_loaded_beside(): pass\n"
        "print(before, 'mlflow.tracking' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_the_first_use_of_an_mlflow_that_cannot_be_loaded_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.delitem(sys.modules, "mlflow.tracking", raising=False)
    with client_loaded_beside():
        pass
    with pytest.raises(HistoryError, match="ModuleNotFoundError: import of mlflow halted"):
        Connection("http://127.0.0.1:1", "experiment").run_url("1")
