"""The connection type `elastrec`: a cluster, a tracking server and a work folder."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk.bases.hook import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret

from elastrec.operators import settings
from elastrec.platform.specs.environment import CA_FILE
from elastrec.platform.specs.errors import MISSING, ClusterError, FieldProblem, SpecError
from elastrec.platform.specs.text.uris import passwords

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from elastrec.platform.clusters import ClusterConfig
    from elastrec.platform.jobs import Platform


def hide_passwords(value: object) -> None:
    """Lets Airflow mask the passwords of all URIs in a value, in every log of the task, including tracebacks of other
    libraries, and among its rendered templates."""
    for password in passwords(str(value)):
        mask_secret(password)
        mask_secret(quote(password, safe=""))


class ElastrecHook(BaseHook):
    """Opens the platform that an Airflow connection describes.

    Host, port and password (the cluster's token) name a cluster. Instead of the password, the extra `token_file` may
    name a file that holds it; instead of all three, the extra `agent_state` may name the folder of a node agent on
    this machine, or `cluster_file` the JSON file of a cluster of any kind, as `ELASTREC_CLUSTER` does for the command
    line. Further extras: `tracking_uri` and `work_uri` (both needed), `mlflow_ui_url`, `base_folder`, `ca`
    (PEM text or the path of a PEM file), `tls_folder` (a folder with such a file, ca.pem; default: the one that
    `ELASTREC_TLS` names, as for the command line).
    """

    conn_name_attr = "elastrec_conn_id"
    default_conn_name = settings.DEFAULT_CONNECTION_ID
    conn_type = settings.CONNECTION_TYPE
    hook_name = "elastrec"

    def __init__(self, elastrec_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.elastrec_conn_id = elastrec_conn_id

    @cached_property
    def platform(self) -> Platform:
        """The platform; no request is made yet.

        Raises:
            SpecError: there is no such connection, or fields of it are missing or wrong; names all of them.
        """
        from elastrec.platform.jobs import Platform

        try:
            connection = self.get_connection(self.elastrec_conn_id)
        except AirflowNotFoundException:
            remedy = f"add it: airflow connections add {self.elastrec_conn_id} --conn-type {self.conn_type} …"
            problem = FieldProblem("elastrec_conn_id", repr(self.elastrec_conn_id), "a connection of Airflow", remedy)
            raise SpecError([problem], "Airflow's connections") from None
        extra: dict[str, Any] = connection.extra_dejson
        problems = [
            FieldProblem(f"extra.{name}", MISSING, "a URI", "add it to the connection")
            for name in ("tracking_uri", "work_uri")
            if not extra.get(name)
        ]
        if problems:
            raise SpecError(problems, f"the connection {self.elastrec_conn_id}")
        hide_passwords([extra.get(field) for field in ("tracking_uri", "mlflow_ui_url", "work_uri")])
        return Platform.connect(
            self._cluster(connection, extra, _tls_folder(extra)),
            str(extra["tracking_uri"]),
            str(extra["work_uri"]),
            ui_url=str(extra.get("mlflow_ui_url") or ""),
            base_folder=Path(str(extra["base_folder"])) if extra.get("base_folder") else None,
        )

    def test_connection(self) -> tuple[bool, str]:
        """Tests the connection by reading the cluster's capacity."""
        from elastrec.platform.clusters.nodes import Capacity

        try:
            capacity = Capacity.of(self.platform.launcher.nodes())
        except Exception as error:
            return False, str(error)
        gib = capacity.total.memory_bytes / 2**30
        return True, f"the cluster has {capacity.total.cores:g} cores and {gib:.1f} GiB for pods"

    def _cluster(self, connection: Connection, extra: dict[str, Any], folder: Path | None) -> ClusterConfig:
        from elastrec.platform.clusters.local.config import LocalConfig
        from elastrec.platform.clusters.local.life_cycle import find_agent
        from elastrec.platform.jobs.surroundings import read_cluster_config

        if extra.get("cluster_file"):
            return read_cluster_config(Path(str(extra["cluster_file"])), "extra.cluster_file")
        if extra.get("agent_state"):
            cluster = find_agent(str(extra["agent_state"]), folder)
            if cluster is None:
                raise ClusterError(f"extra.agent_state: no node agent runs in {extra['agent_state']}")
            return cluster.config
        token = connection.password or _text_of(str(extra.get("token_file") or ""), "extra.token_file")
        remedy = (
            "fill it in, or name a node agent's folder in extra.agent_state or a cluster's file in extra.cluster_file"
        )
        problems = [
            FieldProblem(field, MISSING, allowed, remedy)
            for field, value, allowed in (
                ("host", connection.host, "the host of the cluster's API"),
                ("port", connection.port, "the port of the cluster's API"),
                ("password", token, "the cluster's token, or extra.token_file"),
            )
            if not value
        ]
        if problems:
            raise SpecError(problems, f"the connection {self.elastrec_conn_id}")
        ca = str(extra.get("ca") or (folder / CA_FILE if folder else ""))
        return LocalConfig(
            address=f"{connection.host}:{connection.port}",
            token=str(token),
            tls=ca if ca.startswith("-----BEGIN") else _text_of(ca, "extra.ca"),
        )


def _tls_folder(extra: dict[str, Any]) -> Path | None:
    from elastrec.platform.jobs import checked_tls_folder
    from elastrec.platform.jobs.surroundings import TLS_VARIABLE

    named = str(extra.get("tls_folder") or "")
    setting, folder = ("extra.tls_folder", named) if named else (TLS_VARIABLE, os.environ.get(TLS_VARIABLE))
    return checked_tls_folder(Path(folder), setting, (CA_FILE,)) if folder else None


def _text_of(path: str, field: str) -> str:
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        problem = FieldProblem(field, f"{path!r} ({error})", "a readable file")
        raise SpecError([problem], "the connection") from None
