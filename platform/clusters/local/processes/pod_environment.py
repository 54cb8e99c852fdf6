"""The environment of a local pod: the variables of its spec, settings for speed, and inherited variables.

Inherited from the agent's own environment, and no others: `PATH`, `HOME`, `USER`, `LANG`, `LC_ALL`, `TZ`,
`TMPDIR`, `PYTHONPATH`, `LD_LIBRARY_PATH`, `SSL_CERT_FILE`, `NUMBA_CACHE_DIR`, `NUMBA_CPU_NAME`, `NUMBA_CPU_FEATURES`,
`XDG_CACHE_HOME`, `ELASTREC_STREAMS`, and all of `AWS_*`, `AZURE_*`, `FSSPEC_*`, `GOOGLE_*`, `STORAGE_*` (of object
stores) and `MLFLOW_*`.
The pod's own `environment` (PodSpec) overrides these; the variables that identify the pod override all others.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from elastrec.platform.clusters.pods import PodSize, PodSpec
from elastrec.platform.specs import environment as names

_PASSED = frozenset(
    {
        "PATH",
        "HOME",
        "USER",
        "LANG",
        "LC_ALL",
        "TZ",
        "TMPDIR",
        "PYTHONPATH",
        "LD_LIBRARY_PATH",
        "SSL_CERT_FILE",
        "NUMBA_CACHE_DIR",
        "NUMBA_CPU_NAME",
        "NUMBA_CPU_FEATURES",
        "XDG_CACHE_HOME",
        names.STREAMS,
    }
)
_PASSED_PREFIXES = ("AWS_", "AZURE_", "FSSPEC_", "GOOGLE_", "MLFLOW_", "STORAGE_")
_THREAD_COUNTS = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_FIXED = {
    # Spinning OpenMP threads take the cores that other pods were granted.
    "OMP_WAIT_POLICY": "PASSIVE",
    # Big arrays stay in the heap: returning them to the kernel costs a page fault per page in every batch.
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "PYTHONUNBUFFERED": "1",
}


def pod_environment(
    spec: PodSpec,
    *,
    size: PodSize,
    node: str,
    port: int,
    files: Path,
    work: Path,
    ready: Path | None,
    memory: Path | None = None,
    inherited: Mapping[str, str],
) -> dict[str, str]:
    """Environment variables of one attempt.

    Args:
        size: the present one; numbers of threads follow from its cores.
        port: 0 when the pod does not serve.
        ready: file by which the pod reports its start; None: no report.
        memory: its memory volume; None: it has none.
        inherited: the agent's own environment.
    """
    threads = str(max(1, int(size.cores)))
    variables = {
        name: value for name, value in inherited.items() if name in _PASSED or name.startswith(_PASSED_PREFIXES)
    }
    variables |= _FIXED | dict.fromkeys(_THREAD_COUNTS, threads)
    variables |= spec.environment
    variables |= {
        names.JOB: spec.job,
        names.POD: spec.name,
        names.NODE: node,
        names.HOST: "127.0.0.1",
        names.CORES: f"{size.cores:g}",
        names.FILES: str(files),
        names.WORK: str(work),
    }
    if ready is not None:
        variables[names.READY] = str(ready)
    if memory is not None:
        variables[names.MEMORY] = str(memory)
    if port:
        variables[names.PORT] = str(port)
    return variables


def pod_command(spec: PodSpec) -> tuple[str, ...]:
    """The argument vector; `python` becomes the interpreter that the agent runs in."""
    head, *rest = spec.command
    return (sys.executable if head == "python" else head, *rest)
