"""Long polls: calls to the node agent that wait for the next change or for the next output of a pod.

They do not change pods. They wait only for a limited time, so that they do not delay the end of the agent.
"""

from __future__ import annotations

import time

from elastrec.platform.clusters.local import messages
from elastrec.platform.clusters.local.agent.pod_life import Stage
from elastrec.platform.clusters.local.agent.supervision import Supervision
from elastrec.platform.clusters.local.processes import pod_logs
from elastrec.platform.clusters.pods import PodEvent, PodEventKind
from elastrec.platform.specs.errors import ClusterError

_LONGEST_POLL_SECONDS = 30.0
_FOLLOW_SECONDS = 0.2


class LongPolls(Supervision):
    """The calls of a NodeAgent that wait."""

    def watch(self, job: str | None, resume: str, wait_seconds: float) -> messages.PodEvents:
        """See `WatchPods`."""
        deadline = time.monotonic() + min(wait_seconds, _LONGEST_POLL_SECONDS)
        with self._lock:
            while True:
                since = self._journal.version_of(resume)
                news = None if since is None else self._journal.events_after(since, job)
                if news is None:
                    return self._snapshot(job)
                if news:
                    events = [PodEvent(event.kind, event.pod, self._journal.token(event.version)) for event in news]
                    return messages.PodEvents(events=events, resume=events[-1].resume)
                left = deadline - time.monotonic()
                if self._closed or left <= 0:
                    return messages.PodEvents(events=[], resume=self._journal.token(self._journal.version))
                self._changed.wait(left)

    def read_log(self, request: messages.ReadLog) -> messages.LogChunk:
        """See `ReadLog`."""
        deadline = time.monotonic() + min(request.wait_seconds, _LONGEST_POLL_SECONDS)
        position = request.position
        while True:
            with self._lock:
                record = self._find(request.name)
                if record is None or request.uid not in ("", record.uid):
                    if request.uid:
                        return messages.LogChunk(uid=request.uid, data=b"", position=position or 0, more=False)
                    raise ClusterError(f"pod {request.name} is not there; see the list of pods")
                over = record.stage is Stage.ENDED
                folder = self._runner.log_folder(record.uid)
            if position is None:
                position = 0 if request.tail_lines is None else pod_logs.tail_position(folder, request.tail_lines)
            data, after = pod_logs.read_from(folder, position)
            left = deadline - time.monotonic()
            if data or over or self._closed or left <= 0:
                return messages.LogChunk(uid=record.uid, data=data, position=after, more=bool(data) or not over)
            with self._lock:
                self._changed.wait(min(left, _FOLLOW_SECONDS))

    def _snapshot(self, job: str | None) -> messages.PodEvents:
        records = sorted(self._pods.values(), key=lambda record: record.version)
        pods = [PodEvent(PodEventKind.SEEN, self._status(r)) for r in records if job in (None, r.spec.job)]
        token = self._journal.token(self._journal.version)
        return messages.PodEvents(events=[*pods, PodEvent(PodEventKind.SYNCED, resume=token)], resume=token)
