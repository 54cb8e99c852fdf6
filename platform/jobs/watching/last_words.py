"""Logs of failed pods: their last line as a reason, and a copy that is kept after the pod was deleted."""

from __future__ import annotations

import re

import structlog

from elastrec.platform.clusters.pods import PodPhase, PodStatus
from elastrec.platform.data.files import join, write_bytes
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.specs.errors import ClusterError, DataError

log = structlog.get_logger(__name__)
_REPORT_LINES = 40
_KEPT_LINES = 20_000
_LONGEST_LINE = 1000
_SEARCHED_LINES = 2_000
_TIMESTAMP = re.compile(r"^timestamp=(\S+) ")
_PHASE_CHANGE = re.compile(r" event=phase_changed .*\bafter=(\w+)")


def ending_of(platform: Platform, pod: PodStatus) -> str:
    """One line about the end of a pod's last process: reason, exit code, and the last line of its log.

    Args:
        pod: has failed, or is running with an exit code, because its node restarts it.
    """
    # The message of a pod that waits for its restart contains the reason and the code.
    is_waiting = pod.phase is PodPhase.RUNNING and pod.message
    how = "" if is_waiting else f"{pod.reason} (exit code {pod.exit_code})".strip()
    return ": ".join(text for text in (how, pod.message, _last_line(platform, pod)) if text)


def _last_line(platform: Platform, pod: PodStatus) -> str:
    try:
        lines = [line for line in platform.launcher.logs(pod.name, tail_lines=_REPORT_LINES) if line.strip()]
    except ClusterError:
        return ""
    return lines[-1].strip()[:_LONGEST_LINE] if lines else ""


def last_known(platform: Platform, pod: PodStatus) -> str:
    """The last phase of the job and the time of the last entry in its master's log, in words; empty if unknown."""
    try:
        lines = list(platform.launcher.logs(pod.name, tail_lines=_SEARCHED_LINES))
    except ClusterError:
        return ""
    phases = [found[1] for line in lines if (found := _PHASE_CHANGE.search(line))]
    moments = [found[1] for line in lines if (found := _TIMESTAMP.match(line))]
    phase = f"its last known phase is {phases[-1]}" if phases else ""
    moment = f"the last entry of its log is of {moments[-1]}" if moments else ""
    return ", ".join(text for text in (phase, moment) if text)


def pod_last_words(platform: Platform, pod: PodStatus) -> str:
    """The end of one pod's log, with a heading about how the pod ended."""
    heading = f"--- {pod.name}: {pod.phase.value} {pod.reason} (exit code {pod.exit_code}) {pod.message}".rstrip()
    return "\n".join([heading, *platform.launcher.logs(pod.name, tail_lines=_REPORT_LINES)])


def keep_log(platform: Platform, pod: PodStatus) -> str:
    """Copies the end of a pod's log to `{work_uri}/logs/{pod}.log`, before the pod is deleted.

    Returns the URI of the copy; empty if it could not be made, which is logged and does not prevent the deletion.
    """
    uri = join(platform.work_uri, "logs", f"{pod.name}.log")
    try:
        lines = list(platform.launcher.logs(pod.name, tail_lines=_KEPT_LINES))
        write_bytes(uri, "\n".join([*lines, ""]).encode())
    except (ClusterError, DataError) as error:
        log.warning("pod_log_not_kept", pod=pod.name, reason=str(error))
        return ""
    log.info("pod_log_kept", pod=pod.name, uri=uri)
    return uri


def whole_log(platform: Platform, master: PodStatus) -> list[str]:
    """A report line with the copy of a failed master's log; none if it could not be copied."""
    uri = keep_log(platform, master)
    return [f"--- the whole log of {master.name} is kept in {uri}"] if uri else []
