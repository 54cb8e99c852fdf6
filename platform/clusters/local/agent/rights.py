"""The rights of a job's master at its node agent: only the workers and servers of that job.

The agent reads a master's token from the master's own pod (`LocalConfig.for_master`). So it is independent of the token
of the cluster, which gives all rights, and may change while the job runs.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Mapping

import msgspec

from elastrec.platform.clusters.local import messages
from elastrec.platform.clusters.local.agent.service import NodeAgent
from elastrec.platform.clusters.local.config import LocalConfig
from elastrec.platform.clusters.pods import PodStatus
from elastrec.platform.specs.environment import CLUSTER_FILE
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.metrics import Role
from elastrec.platform.transport import Handler
from elastrec.platform.transport.wire.callers import caller

_MEMBERS = (Role.WORKER, Role.PARAMETER_SERVER)


class JobRights:
    """The owners of tokens and their rights; thread-safe."""

    def __init__(self, agent: NodeAgent) -> None:
        self._agent = agent
        self._lock = threading.Lock()
        self._tokens: dict[str, bytes] = {}  # by uid of the master's pod

    def job_of(self, token: bytes) -> str | None:
        """The job whose master has this token; None if no running master has it."""
        masters = [pod for pod in self._agent.pods(None, None) if pod.role is Role.MASTER and not pod.phase.is_final]
        job = None
        with self._lock:
            self._tokens = {pod.uid: self._tokens.get(pod.uid) or self._token(pod) for pod in masters}
            for pod in masters:
                # All of them are compared, so that the time does not reveal information.
                if (own := self._tokens[pod.uid]) and hmac.compare_digest(own, token):
                    job = pod.job
        return job

    def _token(self, master: PodStatus) -> bytes:
        files = self._agent.secrets(master.name, master.uid) or {}
        try:
            return msgspec.json.decode(files.get(CLUSTER_FILE, ""), type=LocalConfig).token.encode()
        except msgspec.MsgspecError:
            # The pod was created by hand, or its master uses another cluster.
            return b""

    def limited(self, handlers: Mapping[type[msgspec.Struct], Handler]) -> dict[type[msgspec.Struct], Handler]:
        """The same handlers, which refuse calls with a master's token for other jobs."""
        return {kind: self._limited(handler) for kind, handler in handlers.items()}

    def _limited(self, handler: Handler) -> Handler:
        def handle(request: msgspec.Struct) -> msgspec.Struct:
            if (job := caller()) and not self._may(job, request):
                kind = type(request).__name__
                raise ClusterError(
                    f"{kind}: the master of job {job} may ask for nodes, and for workers and servers of its job alone"
                )
            return handler(request)

        return handle

    def _may(self, job: str, request: msgspec.Struct) -> bool:
        match request:
            case messages.GetNodes():
                return True
            case messages.WatchPods():
                return request.job == job
            case messages.CreatePod():
                return request.pod.job == job and request.pod.role in _MEMBERS and not request.replaces_ended
            case messages.DeletePod() | messages.ResizePod():
                # With only the name, it could be another job's pod when the call is executed.
                return bool(request.uid) and all(
                    pod.job == job and pod.role in _MEMBERS
                    for pod in self._agent.pods(request.name, None)
                    if pod.uid == request.uid
                )
            case messages.ReadLog():
                return all(pod.job == job for pod in self._agent.pods(request.name, None))
        return False
