"""Logs of containers from their nodes, which add a header and a footer."""

from __future__ import annotations

import urllib.error
import urllib.request

from elastrec.platform.specs.errors import ClusterError

LOG_FILE = "output"
"""Both streams of a container's process, in its node's log folder."""
_BEGIN, _END = "LogContents:", f"End of LogType:{LOG_FILE}"


def read_log(node: str, container: str, tail_lines: int | None) -> list[str]:
    """The log lines of a container's process, for as long as the node keeps them.

    Args:
        node: `host:port` of its web server.

    Raises:
        ClusterError: the node does not answer.
    """
    url = f"http://{node}/ws/v1/node/containers/{container}/logs/{LOG_FILE}"
    try:
        with urllib.request.urlopen(url, timeout=5.0) as answer:
            lines = log_lines(answer.read().decode(errors="replace"))
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise ClusterError(f"node {node}: {error}", retryable=error.code >= 500) from None
        lines = []  # the process has not begun
    except OSError as error:
        raise ClusterError(f"node {node} does not answer: {error}", retryable=True) from None
    return lines if tail_lines is None else lines[-tail_lines:]


def log_lines(text: str) -> list[str]:
    """The process's own lines."""
    lines = text.splitlines()
    if _BEGIN not in lines:
        return []
    begin = lines.index(_BEGIN) + 1
    # A file that is still written to ends with other words.
    ends = [number for number, line in enumerate(lines) if line.startswith(_END)]
    end = ends[-1] if ends else len(lines)
    return lines[begin:end]
