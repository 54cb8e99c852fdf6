"""Names of the environment variables and files that identify a pod, and what is set for MLflow. Pods read no others.

A pod needs no shared folder: it gets the job file and everything else from the master, whose address is in a variable.
"""

from __future__ import annotations

import os

JOB = "ELASTREC_JOB"
POD = "ELASTREC_POD"
NODE = "ELASTREC_NODE"
MASTER_ADDRESS = "ELASTREC_MASTER_ADDRESS"
JOB_NAME = "ELASTREC_JOB_NAME"
"""The name in the job file; a master that moved is looked up in the store (`STORE_FILE`) under it."""
MASTER_TIMEOUT = "ELASTREC_MASTER_TIMEOUT"
"""Seconds without an answer from any master after which a pod ends by itself."""
GRACE = "ELASTREC_GRACE"
"""Seconds between SIGTERM and SIGKILL, as the pod's specification has them."""
PORT = "ELASTREC_PORT"
HOST = "ELASTREC_HOST"
"""Host name or address under which other pods reach this pod; the backend sets it."""
STREAMS = "ELASTREC_STREAMS"
"""`tcp`: servers offer no Unix socket to pods of their machine, so that a network's limits or faults apply to all."""
CORES = "ELASTREC_CORES"
"""Granted cores; thread counts follow it."""
READY = "ELASTREC_READY"
"""File that the pod's process writes when it has started (see `transport.readiness`); often absent."""
FILES = "ELASTREC_FILES"
"""Folder with the pod's files (PodSpec.files, PodSpec.secrets)."""
WORK = "ELASTREC_WORK"
"""The pod's own folder: survives a restart in place, vanishes with the pod."""
MEMORY = "ELASTREC_MEMORY"
"""Memory file that the node or the pod keeps for a server's next process (PodSpec.memory_volume); often absent."""

TOKEN_FILE = "token"
"""The job's token, in FILES."""
STORE_FILE = "store"
"""Workers and servers: URI of the job's checkpoint store, in FILES because it may hold a password."""
CA_FILE = "ca.pem"
CERTIFICATE_FILE = "tls.crt"
KEY_FILE = "tls.key"
"""TLS is used when these exist in FILES."""
LAUNCH_FILE = "launch.json"
"""Master only: a LaunchRequest."""
CLUSTER_FILE = "cluster.json"
"""Master only: how to reach the cluster (backend, address, token)."""


def disable_usage_data() -> None:
    """MLflow sends no usage data to its makers, unless `MLFLOW_DISABLE_TELEMETRY` is set; call it before the import.

    Its telemetry also changes `os.environ` in a thread: a request of another thread that read the variables at that
    moment failed with a KeyError, and with it the launch of a job.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
