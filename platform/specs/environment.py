"""Names of the environment variables and files by which a pod learns who it is. No others are read by pods.

A pod gets no shared folder: the job file and everything else comes from the master whose address stands here.
"""

from __future__ import annotations

JOB = "ELASTREC_JOB"
POD = "ELASTREC_POD"
NODE = "ELASTREC_NODE"
MASTER_ADDRESS = "ELASTREC_MASTER_ADDRESS"
STORE = "ELASTREC_STORE"
"""URI of the job's checkpoint store, and JOB_NAME the name in its job file: where a master that moved is looked up."""
JOB_NAME = "ELASTREC_JOB_NAME"
PORT = "ELASTREC_PORT"
HOST = "ELASTREC_HOST"
"""Host name or address that others reach this pod by; the backend sets it."""
STREAMS = "ELASTREC_STREAMS"
"""`tcp`: servers offer no Unix socket to pods of their machine, so that a network's limits or faults apply to all."""
CORES = "ELASTREC_CORES"
"""Granted cores; thread counts follow it."""
READY = "ELASTREC_READY"
"""File by which the pod's process says that it has started (see `transport.readiness`); often absent."""
FILES = "ELASTREC_FILES"
"""Folder with the pod's files (PodSpec.files, PodSpec.secrets)."""
WORK = "ELASTREC_WORK"
"""The pod's own folder: survives a restart in place, vanishes with the pod."""

TOKEN_FILE = "token"
"""The job's token, in FILES."""
CA_FILE = "ca.pem"
CERTIFICATE_FILE = "tls.crt"
KEY_FILE = "tls.key"
"""TLS is used when these exist in FILES."""
LAUNCH_FILE = "launch.json"
"""Master only: a LaunchRequest."""
CLUSTER_FILE = "cluster.json"
"""Master only: how to reach the cluster (backend, address, token)."""
