"""Paths on the caller's machine in jobs whose pods run on other machines."""

from __future__ import annotations

from typing import Any

from tests.bad_input.case import Arguments, Case, Place, run
from tests.bad_input.model_cases import HEAD, module
from tests.remote_cluster import install

REMOTE = "Paths on this machine, with a cluster of other machines"
_GOOD = {"ELASTREC_WORK_URI": "s3://bucket/work", "MLFLOW_TRACKING_URI": "http://mlflow.example.org:5000"}


def far(environment: dict[str, str | None] | None = None, **fields: Any) -> Arguments:
    """`elastrec run` with a remote cluster, where all but the named things can be reached (None: left out)."""

    def prepare(place: Place) -> list[str]:
        install(place.folder)
        file = place.folder / "far.json"
        file.write_text('{"backend": "far"}')
        named = {**_GOOD, "ELASTREC_CLUSTER": str(file), **(environment or {})}
        place.environment |= {name: value for name, value in named.items() if value is not None}
        for path, value in {"spec.data.path": "s3://bucket/clicks", **fields}.items():
            place.set(path, value)
        return run(place)

    return prepare


def _users_module(place: Place) -> list[str]:
    arguments = far()(place)
    place.set("spec.model.architecture", f"{module(place, HEAD)}:MyModel")
    return arguments


def _all_at_once(place: Place) -> list[str]:
    arguments = far(dict.fromkeys(_GOOD))(place)
    place.set("spec.data.path", str(place.log))
    return arguments


_URI = "a URI that every node reaches"
_SERVER = "the address of an MLflow server"

CASES = [
    Case(REMOTE, "the data", far(**{"spec.data.path": "data/clicks"}),
         ("spec.data.path", "data/clicks", "on this machine", _URI, "shared_folders", "copy the data")),
    Case(REMOTE, "the checkpoint store", far(**{"spec.checkpoint.store": "file:///srv/checkpoints"}),
         ("spec.checkpoint.store", "'file:///srv/checkpoints'", "on this machine", _URI, "job file")),
    Case(REMOTE, "the record to start from", far(**{"spec.continual.start_from": "/srv/checkpoints/click/records/1"}),
         ("spec.continual.start_from", "'/srv/checkpoints/click/records/1'", "on this machine", _URI)),
    Case(REMOTE, "the folder for manifests and logs", far({"ELASTREC_WORK_URI": None}),
         ("work_uri", "on this machine", _URI, "set ELASTREC_WORK_URI", "extra.work_uri")),
    Case(REMOTE, "a store that is served on this machine",
         far(**{"spec.checkpoint.store": "s3://bucket/store?endpoint_override=http%3A%2F%2Flocalhost:9000"}),
         ("spec.checkpoint.store", "localhost:9000", "each node would ask itself", _URI)),
    Case(REMOTE, "MLflow in an SQLite file", far({"MLFLOW_TRACKING_URI": "sqlite:////srv/mlflow.db"}),
         ("tracking_uri", "'sqlite:////srv/mlflow.db'", "a file of this machine", _SERVER, "set MLFLOW_TRACKING_URI")),
    Case(REMOTE, "MLflow in a folder", far({"MLFLOW_TRACKING_URI": "file:///srv/mlruns"}),
         ("tracking_uri", "'file:///srv/mlruns'", "a file of this machine", _SERVER)),
    Case(REMOTE, "MLflow on this machine", far({"MLFLOW_TRACKING_URI": "http://user:geheim@127.0.0.1:5000"}),
         ("tracking_uri", "user:***@127.0.0.1:5000", "each node would ask itself", _SERVER)),
    Case(REMOTE, "a model of a module that is not installed", _users_module,
         ("spec.model.architecture", ":MyModel", "no installed package", "in the image")),
    Case(REMOTE, "several of them", _all_at_once,
         ("3 problems", "spec.data.path", "work_uri", "tracking_uri", "'sqlite:///")),
]  # fmt: skip
