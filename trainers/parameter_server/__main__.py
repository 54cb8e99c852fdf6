"""`python -m elastrec.trainers.parameter_server`: one parameter server pod, described by its environment."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

# Before numpy and numba start their threads.
_CORES = max(1, int(float(os.environ.get("ELASTREC_CORES") or 1)))
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "ARROW_IO_THREADS"):
    os.environ.setdefault(_name, str(_CORES))

import structlog  # noqa: E402

from elastrec.checkpoints import expect_existing_stores  # noqa: E402
from elastrec.platform.specs import environment  # noqa: E402
from elastrec.platform.specs.errors import ElastrecError  # noqa: E402
from elastrec.platform.transport import TlsConfig  # noqa: E402
from elastrec.platform.transport.logs import configure_logging  # noqa: E402
from elastrec.platform.transport.security import job_server_name  # noqa: E402
from elastrec.trainers.imports import without_collector  # noqa: E402

with without_collector():
    from elastrec.trainers.master_client import TermPlace
    from elastrec.trainers.parameter_server.pod import PodSettings, ServerPod

BAD_INPUT_EXIT_CODE = 2
FAILURE_EXIT_CODE = 1


def read_settings() -> PodSettings:
    """The pod's settings from environment and files.

    Raises:
        ElastrecError: a variable or the token's file is missing, or the port is not a number.
    """
    needed = (environment.JOB, environment.POD, environment.MASTER_ADDRESS, environment.FILES)
    missing = [name for name in needed if not os.environ.get(name)]
    if missing:
        raise ElastrecError(f"the environment variables {missing} are missing; a cluster backend sets them for pods")
    files = Path(os.environ[environment.FILES])
    port = os.environ.get(environment.PORT) or "0"
    if not port.isdecimal():
        raise ElastrecError(f"{environment.PORT}: {port!r} is no port number")
    try:
        token = (files / environment.TOKEN_FILE).read_text().strip()
    except OSError as error:
        raise ElastrecError(f"the job's token cannot be read: {error}") from error
    host = os.environ.get(environment.HOST) or "127.0.0.1"
    return PodSettings(
        pod=os.environ[environment.POD],
        node=os.environ.get(environment.NODE, ""),
        master_address=os.environ[environment.MASTER_ADDRESS],
        host=host,
        port=int(port),
        token=token,
        tls=TlsConfig.from_folder(files, job_server_name(os.environ[environment.JOB])),
        terms=TermPlace.read(),
        grace_seconds=_grace_seconds(),
        memory=Path(memory) if (memory := os.environ.get(environment.MEMORY)) else None,
        # Other machines cannot reach the loopback address.
        listen="127.0.0.1" if host in ("127.0.0.1", "localhost") else "0.0.0.0",
        local_streams=os.environ.get(environment.STREAMS) != "tcp",
    )


def _grace_seconds() -> float:
    """0 if the variable is missing: the process ends immediately."""
    text = os.environ.get(environment.GRACE) or "0"
    try:
        return float(text)
    except ValueError:
        raise ElastrecError(f"{environment.GRACE}: {text!r} is no number of seconds") from None


def keep_freed_memory() -> None:
    """Makes glibc reuse the buffers of one request for the next, instead of returning their pages and faulting again.

    Has the effect of MALLOC_MMAP_THRESHOLD_ in the environment.
    """
    trim_threshold, mmap_threshold, largest = -1, -3, 2**31 - 1
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(mmap_threshold, largest)
        libc.mallopt(trim_threshold, largest)


def main() -> int:
    keep_freed_memory()
    configure_logging()
    expect_existing_stores()
    log = structlog.get_logger(__name__)
    try:
        pod = ServerPod(read_settings())
    except ElastrecError as error:
        sys.stderr.write(f"{error}\n")
        return BAD_INPUT_EXIT_CODE
    signal.signal(signal.SIGTERM, lambda *_: pod.give_notice())
    signal.signal(signal.SIGINT, lambda *_: pod.stop())
    try:
        pod.run()
    except ElastrecError as error:
        log.error("server_failed", kind=type(error).__name__, reason=str(error))
        return FAILURE_EXIT_CODE
    return 0


if __name__ == "__main__":
    sys.exit(main())
