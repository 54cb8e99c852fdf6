"""The master pod: `python -m elastrec.platform.master`.

SIGTERM ends the process, not the job: the master saves a record if there is time, and does not change its pods. The
next process of a job that has ended waits until its result has been read.

Exit code 0: the job has ended, or another master has taken it over; 2: the master would fail again and should not be
restarted; any other code: it may be restarted (143: after SIGTERM).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

import structlog

from elastrec.checkpoints import SupersededError, delete_predictions, expect_existing_stores
from elastrec.platform.clusters import connect_fleet, decode_config
from elastrec.platform.clusters.pods import BAD_INPUT_EXIT_CODE
from elastrec.platform.master.pods.launch import LaunchRequest, decode_launch
from elastrec.platform.master.service.history_sink import leave_points, open_history_sink
from elastrec.platform.master.service.journal import JournalError
from elastrec.platform.master.service.service import JobService
from elastrec.platform.specs import environment
from elastrec.platform.specs.errors import CheckpointError, ClusterError, ElastrecError, FieldProblem, SpecError
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.transport import RpcServer, TlsConfig
from elastrec.platform.transport.logs import configure_logging
from elastrec.platform.transport.readiness import announce_ready
from elastrec.platform.transport.security import job_server_name

log = structlog.get_logger(__name__)
TERMINATED_EXIT_CODE = 128 + signal.SIGTERM
"""The node starts the pod again, and the job continues from the journal."""
_SAVE_GRACE_SECONDS = 15.0
"""Time for a record in the grace period of a master's pod (`launch`); the rest is for closing."""


def _variable(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise SpecError([FieldProblem(name, "''", "set by the cluster in a master's pod")], "the environment")
    return value


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        problem = FieldProblem(str(path), str(error), "a readable file", "start masters with launch.master_pod")
        raise SpecError([problem], "the pod's files") from None


def run() -> int:
    """Runs the master until its job has ended and the result was read; returns the exit code."""
    stopped = threading.Event()

    def stop(signal_number: int, frame: FrameType | None) -> None:
        stopped.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)

    files, work = Path(_variable(environment.FILES)), Path(_variable(environment.WORK))
    host, port = os.environ.get(environment.HOST, "127.0.0.1"), int(_variable(environment.PORT))
    token = _read(files / environment.TOKEN_FILE).strip()
    request = decode_launch(_read(files / environment.LAUNCH_FILE))
    config = decode_config(_read(files / environment.CLUSTER_FILE), environment.CLUSTER_FILE)
    tls = TlsConfig.from_folder(files, job_server_name(request.job_id))
    fleet = connect_fleet(config, request.job_id)
    sink = open_history_sink(request, fleet, work)
    service = JobService(request, fleet, work, token=token, tls=tls, history=sink)
    # A pod of a real cluster listens on its own address, a local pod only on the loopback.
    listen = host if host in ("127.0.0.1", "localhost") else "0.0.0.0"
    server = RpcServer(
        service.handlers(),
        token=token,
        host=listen,
        port=port,
        tls=tls,
        advertised_host=host,
        local_streams=os.environ.get(environment.STREAMS) != "tcp",
        maximum_connections=service.maximum_connections,
    )

    def pause(seconds: float) -> None:
        if stopped.wait(seconds):
            raise ClusterError("stopped before the checkpoint store had given a term", retryable=True)

    # No call is answered before it is certain that this master may direct the job.
    announce_ready()
    service.start(server.address, pause)
    server.serve_in_background()
    log.info("master_started", job=request.job_id, address=server.address, continued=service.is_continued)
    is_done = service.wait_until_done(stopped=stopped.is_set)
    if service.is_superseded():
        if sink:
            sink.stop_tags()
        server.shutdown()
        service.close()
        if sink:
            leave_points(request, sink.close())
        return 0
    if not is_done:
        # The node or the cluster ends the process, which does not stop the job (`StopJob` does). The master of a job
        # that has ended is started again, too, because callers read the result from it.
        service.leave(_SAVE_GRACE_SECONDS)
        server.shutdown()
        service.close()
        if sink:
            sink.close()
        return TERMINATED_EXIT_CODE
    # No pod may be created any more when the pods are deleted.
    server.shutdown()
    service.close()
    phase = service.state.phase
    service.delete_pods(keep_for_logs=phase is Phase.FAILED and not stopped.is_set())
    if phase in (Phase.FAILED, Phase.STOPPED) and not service.is_superseded():
        _forget_evaluation(request)
    if sink:
        leave_points(request, sink.close())
    return 0


def _forget_evaluation(request: LaunchRequest) -> None:
    """Deletes the predictions of a job that has not succeeded: no model is exported, and if it is resumed, its rows are
    evaluated again. No worker writes any more."""
    try:
        delete_predictions(request.store, request.training_job.metadata.name, request.job_id)
    except CheckpointError as error:
        log.warning("predictions_not_deleted", job=request.job_id, store=request.store, reason=str(error))


def main() -> None:
    """Reads the pod's environment, runs the job, and turns fatal errors into an exit code with a reason."""
    configure_logging()
    expect_existing_stores()
    try:
        code = run()
    except (SpecError, JournalError) as error:
        print(error, file=sys.stderr)  # noqa: T201
        code = 1 if isinstance(error, JournalError) and error.retryable else BAD_INPUT_EXIT_CODE
    except SupersededError as error:
        # Of another address than its journal's, as after the restart of its node.
        print(error, file=sys.stderr)  # noqa: T201
        code = 0
    except ElastrecError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # The history's threads must not prevent a finished master from exiting.
    os._exit(code)


if __name__ == "__main__":
    main()
