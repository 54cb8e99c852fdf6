"""A plain REST client of the Kubernetes API: JSON requests and answers; every failure is a ClusterError that says
whether it is temporary.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Iterator
from typing import Any

import httpx

from elastrec.platform.specs.errors import ClusterError

MERGE = "application/strategic-merge-patch+json"
_CALL_SECONDS = 10.0
_WATCH_SLACK_SECONDS = 10.0
_RETRYABLE = frozenset({401, 408, 409, 429, 500, 502, 503, 504})

_NO_RIGHT = re.compile(r'User ".*" cannot \w+ resource')


class ApiError(ClusterError):
    """The API server answered with an error.

    Attributes:
        status: the HTTP status, or the code of an error within a watch.
        reason: Kubernetes' reason, such as `AlreadyExists` or `Conflict`.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        # A 403 is also what admission says for good. A right may be missing for a moment: a server that was just
        # started answers before it has read the roles.
        may_pass = status == 403 and ("exceeded quota" in message or _NO_RIGHT.search(message) is not None)
        super().__init__(message, retryable=status in _RETRYABLE or may_pass)
        self.status, self.reason = status, reason


class Api:
    """One server, one token; safe to use from several threads.

    Args:
        authority: PEM text of the certificate to trust.
    """

    def __init__(self, url: str, token: str, authority: str) -> None:
        context = ssl.create_default_context(cadata=authority)
        self._client = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, verify=context, timeout=_CALL_SECONDS,
            trust_env=False, limits=httpx.Limits(max_connections=64),
        )  # fmt: skip

    def call(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json", **query: Any
    ) -> dict[str, Any]:
        """One request.

        Raises:
            ApiError: the server refused.
            ClusterError: the server did not answer.
        """
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type} if content is not None else {}
        try:
            answer = self._client.request(method, path, content=content, headers=headers, params=query)
        except httpx.HTTPError as error:
            raise _unreachable(error) from error
        if answer.status_code >= 400:
            raise _refusal(answer.status_code, answer.content)
        found: dict[str, Any] = answer.json()
        return found

    def text(self, path: str, **query: Any) -> str:
        """The body of one answer, for logs."""
        try:
            answer = self._client.get(path, params=query)
        except httpx.HTTPError as error:
            raise _unreachable(error) from error
        if answer.status_code >= 400:
            raise _refusal(answer.status_code, answer.content)
        return answer.content.decode(errors="replace")

    def watch(self, path: str, version: str, seconds: float, **query: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields events (type, object) after a version.

        Raises:
            ApiError: with status 410 if the version is no longer known, for both ways in which servers report this.
        """
        parameters = {**query, "watch": "true", "resourceVersion": version, "timeoutSeconds": max(1, round(seconds))}
        timeout = httpx.Timeout(_CALL_SECONDS, read=seconds + _WATCH_SLACK_SECONDS)
        try:
            with self._client.stream("GET", path, params=parameters, timeout=timeout) as answer:
                if answer.status_code >= 400:
                    raise _refusal(answer.status_code, answer.read())
                for line in answer.iter_lines():
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        raise ApiError(status.get("code", 500), status.get("reason", ""), status.get("message", ""))
                    yield event["type"], event["object"]
        except httpx.HTTPError as error:
            raise _unreachable(error) from error
        except json.JSONDecodeError as error:
            raise ClusterError(f"Kubernetes ended a watch within a line: {error}", retryable=True) from error

    def close(self) -> None:
        self._client.close()


def _unreachable(error: httpx.HTTPError) -> ClusterError:
    return ClusterError(f"Kubernetes does not answer: {error or type(error).__name__}", retryable=True)


def _refusal(status: int, body: bytes) -> ApiError:
    try:
        answer = json.loads(body)
        return ApiError(status, answer.get("reason", ""), answer.get("message", ""))
    except (json.JSONDecodeError, AttributeError):
        return ApiError(status, "", body.decode(errors="replace")[:500] or f"HTTP {status}")
