"""The connection to one experiment of an MLflow server: client, conversion of errors, links for people."""

from __future__ import annotations

import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from elastrec.platform.history.database import (
    database_file,
    ensure_database,
    explained_database_errors,
    make_artifacts_folder,
)
from elastrec.platform.history.delivery.sink import tls_context
from elastrec.platform.history.records import TAG_JOB_ID
from elastrec.platform.history.scratch import scratch_folder
from elastrec.platform.specs.errors import CollisionError, ElastrecError, HistoryError
from elastrec.platform.specs.text.uris import without_credentials

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from mlflow.tracking import MlflowClient

_ANSWER_SECONDS = 3.0
# MLflow reads it only after the #.
_VIEW = "machine_learning"
_REQUEST_SECONDS = 30
_FIRST_SERVER_ERROR = 500


def answers(tracking_uri: str) -> bool:
    """Whether the tracking server answers at present; True for a database file. Takes 3 s at most."""
    if not tracking_uri.startswith(("http://", "https://")):
        return True
    try:
        page = f"{without_credentials(tracking_uri).rstrip('/')}/health"
        with urllib.request.urlopen(page, timeout=_ANSWER_SECONDS, context=tls_context(os.environ)):
            return True
    except urllib.error.HTTPError as error:
        # A proxy that requires a password or does not have the page counts as answering, unless it has no server.
        return error.code < _FIRST_SERVER_ERROR
    except (OSError, ValueError):
        return False


def experiments_url(ui_url: str) -> str:
    """Page that lists the experiments, in MLflow's view for model training; without this path, MLflow opens the view
    for GenAI."""
    return f"{without_credentials(ui_url).rstrip('/')}/#/experiments?workflowType={_VIEW}"


@contextmanager
def client_loaded_beside() -> Iterator[None]:
    """Imports mlflow, which takes a second, in another thread, while the block waits for something else."""

    def load() -> None:
        # Errors are reported at the first use.
        with suppress(Exception):
            import mlflow.tracking  # noqa: F401

    loading = threading.Thread(target=load, name="mlflow-import", daemon=True)
    loading.start()
    try:
        yield
    finally:
        loading.join()


class Connection:
    """mlflow is imported, and the server is connected, at the first use.

    Args:
        tracking_uri: `http(s)://...`, or `sqlite:///file`.
        experiment: name; created when it does not exist.
        ui_url: address of MLflow for browsers, if that is not the tracking URI.
        request_seconds: timeout of each request to MLflow, which is tried four times.
            The variables `MLFLOW_HTTP_REQUEST_TIMEOUT` and `MLFLOW_HTTP_REQUEST_MAX_RETRIES` override both.
    """

    def __init__(
        self, tracking_uri: str, experiment: str, ui_url: str = "", *, request_seconds: int = _REQUEST_SECONDS
    ) -> None:
        self._tracking_uri = tracking_uri
        self._experiment = experiment
        self._database = database_file(tracking_uri)
        self._ui = without_credentials(ui_url or (tracking_uri if tracking_uri.startswith("http") else "")).rstrip("/")
        self._request_seconds = request_seconds

    @cached_property
    def _client(self) -> MlflowClient:
        # mlflow prints a link at the end of every run, which must not be in a command's output.
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        # By default, mlflow makes seven retries, which take four minutes if the server is not reachable, and two
        # minutes each if it accepts connections and does not answer.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(self._request_seconds))
        import mlflow
        from mlflow.tracking import MlflowClient

        if not self._tracking_uri.startswith("http"):
            # mlflow's database store looks models up through the process-wide URI.
            mlflow.set_tracking_uri(self._tracking_uri)
        if self._database:
            ensure_database(self._database)
        return MlflowClient(self._tracking_uri, registry_uri=self._tracking_uri)

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        from mlflow.exceptions import MlflowException

        try:
            with explained_database_errors(self._database) if self._database else nullcontext():
                yield
        except MlflowException as error:
            # The code with which MLflow reports errors of its database; wrong values have another code.
            kind = CollisionError if error.error_code == "BAD_REQUEST" else HistoryError
            raise kind(f"could not {what} at {self._tracking_uri}: {error}") from error
        except OSError as error:
            raise HistoryError(f"could not {what} at {self._tracking_uri}: {error}; is it running?") from error
        except Exception as error:
            # Clients of artifact stores and databases raise errors of their own, which MLflow does not convert; or
            # they are not installed.
            is_own = isinstance(error, ElastrecError) or type(error).__module__ == "builtins"
            if is_own and not isinstance(error, ImportError):
                raise
            kind_of_error = type(error).__name__
            raise HistoryError(f"could not {what} at {self._tracking_uri}: {kind_of_error}: {error}") from error

    # MLflow's own `log_text` and `log_figure` leave a folder behind when the process is killed.

    def _log_text(self, run_id: str, text: str, path: str) -> None:
        with self._artifact(run_id, path) as file:
            file.write_text(text, encoding="utf-8")

    def _log_figure(self, run_id: str, figure: Figure, path: str) -> None:
        with self._artifact(run_id, path) as file:
            figure.savefig(file)

    @contextmanager
    def _artifact(self, run_id: str, path: str) -> Iterator[Path]:
        """A local file, which becomes an artifact of a run at the end of the block."""
        with scratch_folder() as place:
            file = place / path.rpartition("/")[2]
            yield file
            self._client.log_artifact(run_id, str(file), path.rpartition("/")[0] or None)

    @cached_property
    def _experiment_id(self) -> str:
        from mlflow.exceptions import MlflowException

        with self._explained(f"open the experiment {self._experiment!r}"):
            experiment = self._client.get_experiment_by_name(self._experiment)
            if experiment is None:
                try:
                    return str(self._client.create_experiment(self._experiment, self._artifacts()))
                except MlflowException as error:
                    if error.error_code != "RESOURCE_ALREADY_EXISTS":
                        raise
                    experiment = self._client.get_experiment_by_name(self._experiment)
        if experiment is None or experiment.lifecycle_stage != "active":
            raise HistoryError(
                f"experiment: {self._experiment!r} was deleted in MLflow; restore it there "
                "(mlflow experiments restore) or name another in spec.history.experiment"
            )
        return str(experiment.experiment_id)

    def _artifacts(self) -> str | None:
        """Folder for the files of a new experiment: next to a database file; a server chooses the folder itself."""
        return make_artifacts_folder(self._database) if self._database else None

    def run_url(self, run_id: str) -> str:
        """Page of a run; empty if no server shows MLflow's pages (a database file as tracking URI)."""
        return self._page(self._experiment_id, run_id) if self._ui else ""

    def page(self, run_id: str) -> str:
        """Page of a run of any experiment; empty if no server shows MLflow's pages."""
        with self._explained(f"read run {run_id}"):
            experiment_id = self._client.get_run(run_id).info.experiment_id
        return self._page(experiment_id, run_id)

    def _page(self, experiment_id: str, run_id: str) -> str:
        """The same of a run whose experiment is known."""
        return f"{self._ui}/#/experiments/{experiment_id}/runs/{run_id}?workflowType={_VIEW}" if self._ui else ""

    def job_url(self, job_id: str) -> str:
        """Page that lists a job's runs, also before there is one; empty if no server shows MLflow's pages."""
        if not self._ui:
            return ""
        search = quote(f"tags.`{TAG_JOB_ID}` = '{job_id}'")
        return f"{self._ui}/#/experiments/{self._experiment_id}/runs?searchFilter={search}&workflowType={_VIEW}"
