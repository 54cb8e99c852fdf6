"""The description of this provider for Airflow: its connection type with the fields of the form, and its links."""

from __future__ import annotations

from typing import Any

from elastrec.operators.settings import CONNECTION_TYPE, DEFAULT_CONNECTION_ID

_TEXT = {"type": ["string", "null"]}


def get_provider_info() -> dict[str, Any]:
    """Entry point `apache_airflow_provider`."""
    return {
        "package-name": "elastrec",
        "name": "elastrec",
        "description": "Elastic training of recommendation models.",
        "connection-types": [
            {
                "connection-type": CONNECTION_TYPE,
                "hook-class-name": "elastrec.operators.hook.ElastrecHook",
                "hook-name": "elastrec",
                "ui-field-behaviour": {
                    "hidden-fields": ["schema", "login", "extra"],
                    "relabeling": {"password": "Cluster token"},
                    "placeholders": {"host": "127.0.0.1", "port": "port of the cluster's API"},
                },
                "conn-fields": {
                    "tracking_uri": {
                        "label": "MLflow tracking URI",
                        "schema": _TEXT,
                        "description": "Required. For example http://127.0.0.1:5000",
                    },
                    "work_uri": {
                        "label": "Work folder",
                        "schema": _TEXT,
                        "description": "Required. Folder or URI of manifests and checkpoints that all pods can reach.",
                    },
                    "mlflow_ui_url": {
                        "label": "MLflow address for people",
                        "schema": _TEXT,
                        "description": "Address of MLflow for browsers; default: the tracking URI.",
                    },
                    "token_file": {
                        "label": "File with the cluster token",
                        "schema": _TEXT,
                        "description": "File that contains the token, instead of the password.",
                    },
                    "agent_state": {
                        "label": "Folder of a local node agent",
                        "schema": _TEXT,
                        "description": "Instead of host, port and token.",
                    },
                    "cluster_file": {
                        "label": "File of a cluster of another kind",
                        "schema": _TEXT,
                        "description": "JSON file, as in ELASTREC_CLUSTER; instead of host, port and token.",
                    },
                    "base_folder": {
                        "label": "Base folder of data paths",
                        "schema": _TEXT,
                        "description": "Relative data paths of job files are relative to this folder.",
                    },
                    "ca": {
                        "label": "Root certificate",
                        "schema": _TEXT,
                        "description": "PEM text or path of a PEM file; empty: plain TCP.",
                    },
                    "tls_folder": {
                        "label": "Folder with the root certificate",
                        "schema": _TEXT,
                        "description": "Contains ca.pem; default: the folder in ELASTREC_TLS.",
                    },
                },
            }
        ],
        "extra-links": ["elastrec.operators.links.MlflowRunLink", "elastrec.operators.links.MigrationLink"],
        "config": {
            "elastrec": {
                "description": "Pages of elastrec in Airflow.",
                "options": {
                    "page_connections": {
                        "description": "Connections whose jobs the page shows, separated by commas. All users who may "
                        "read DAG runs can see them.",
                        "type": "string",
                        "example": None,
                        "version_added": None,
                        "default": DEFAULT_CONNECTION_ID,
                    }
                },
            }
        },
    }
