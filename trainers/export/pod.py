"""The evaluator as a process: its request, its result, and its exit codes by error."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import structlog
import torch

from elastrec.platform.data.files import is_read_error
from elastrec.platform.specs import environment
from elastrec.platform.specs.errors import DataError, ElastrecError, HistoryError, JobFailedError, SpecError
from elastrec.platform.transport.logs import configure_logging
from elastrec.platform.transport.messages.export import EXIT_HISTORY, EXPORT_FILE, decode_request, result_line
from elastrec.trainers.export.process import export
from elastrec.trainers.threads import granted_threads

log = structlog.get_logger(__name__)


def main() -> int:
    """Runs the evaluator pod; returns its exit code."""
    configure_logging()
    torch.set_num_threads(granted_threads(os.environ))
    files = os.environ.get(environment.FILES, "")
    work = Path(os.environ.get(environment.WORK) or ".").absolute()
    try:
        if not files:
            raise JobFailedError(f"the environment variable {environment.FILES} is missing; a cluster backend sets it")
        # MLflow never deletes the champion that it downloads; here, it vanishes with the pod.
        tempfile.tempdir = str(work)
        request = decode_request((Path(files) / EXPORT_FILE).read_text())
        result = export(request, work)
    except ElastrecError as error:
        log.error("export_failed", reason=str(error), kind=type(error).__name__)
        if isinstance(error, HistoryError):
            return EXIT_HISTORY
        if is_read_error(error):
            return 1  # which says nothing about the model
        return 2 if isinstance(error, JobFailedError | SpecError | DataError) else 1
    except Exception as error:
        # Others come from the user's model or transform, or from a bug of ours, and would occur again.
        log.exception("export_failed")
        return 1 if isinstance(error, OSError | MemoryError) else 2
    sys.stdout.write(result_line(result) + "\n")
    sys.stdout.flush()
    return 0
