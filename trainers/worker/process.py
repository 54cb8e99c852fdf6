"""The process of a worker: signals, set-up, and exit codes for errors."""

from __future__ import annotations

import os
import signal
import traceback

import structlog
import torch

from elastrec.checkpoints import expect_existing_stores
from elastrec.platform.specs.errors import (
    AuthenticationError,
    CheckpointError,
    ClusterError,
    DataError,
    ElastrecError,
    IncompatibleError,
    JobFailedError,
    SpecError,
    TransportError,
)
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.text.uris import masked
from elastrec.platform.transport.logs import configure_logging
from elastrec.trainers.memory import ResidentMemory
from elastrec.trainers.threads import granted_threads
from elastrec.trainers.worker.feed import FeedError
from elastrec.trainers.worker.identity import Identity
from elastrec.trainers.worker.loop import run
from elastrec.trainers.worker.parameter_server_trainer import ParameterServerTrainer
from elastrec.trainers.worker.session import Session
from elastrec.trainers.worker.warm_up import warm_up
from elastrec.trainers.worker.work import Worker

log = structlog.get_logger(__name__)

EXIT_DONE, EXIT_RETRY, EXIT_JOB_FAILS = 0, 1, 2


def run_worker(identity: Identity) -> int:
    """Runs one worker until the master orders EXIT or SIGTERM is received; returns the exit code."""
    configure_logging()
    expect_existing_stores()
    torch.set_num_threads(granted_threads(os.environ))
    structlog.contextvars.bind_contextvars(pod=identity.pod)
    session = Session(identity, memory_bytes=ResidentMemory().measure)
    signal.signal(signal.SIGTERM, lambda *_: session.stop())
    signal.signal(signal.SIGINT, lambda *_: session.stop())
    try:
        warm_up()
        registered = session.register()
        job = TrainingJob.model_validate_json(registered.job_json)
        trainer = ParameterServerTrainer(job, identity, session.window)
        run(Worker(session, job, registered, trainer, torch.set_num_threads))
        return EXIT_DONE
    except AuthenticationError as error:
        log.error("worker_refused", reason=str(error))
        return EXIT_JOB_FAILS
    except Exception as error:
        if session.is_stopped and isinstance(error, TransportError):
            return EXIT_DONE
        return _fail(session, error)


def is_retryable(error: BaseException) -> bool:
    """Whether another process may succeed: after lost connections, full disks or memory, but not after bugs or bad
    data.

    Errors outside our hierarchy come from the user's model or transform, or from a bug of ours; both would recur.
    """
    if isinstance(error, SpecError | DataError | JobFailedError | IncompatibleError):
        return False
    return isinstance(error, TransportError | CheckpointError | ClusterError | OSError | MemoryError)


def _fail(session: Session, error: Exception) -> int:
    progress = None
    cause: BaseException = error
    if isinstance(error, FeedError):
        progress, cause = error.progress, error.__cause__ or error
    # Causes in the traceback are errors of other libraries, whose messages may hold URIs with passwords.
    text = masked("".join(traceback.format_exception(cause)))
    retryable = is_retryable(cause)
    reason = masked(str(cause) if isinstance(cause, ElastrecError) else f"{type(cause).__name__}: {cause}")
    log.error("worker_failed", retryable=retryable, reason=reason, traceback=text)
    session.failed(retryable=retryable, reason=reason, traceback=text, shard=progress)
    return EXIT_RETRY if retryable else EXIT_JOB_FAILS
