"""The ResourceManager's REST API, for callers outside of a job."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from elastrec.platform.specs.errors import ClusterError

Object = dict[str, Any]
_SECONDS = 10.0


class Rest:
    """Of one cluster, in the name of one user."""

    def __init__(self, url: str, user: str) -> None:
        self._url, self._user = url, user

    def call(self, method: str, path: str, body: Object | None = None, **query: str) -> Object:
        """The JSON answer of `/ws/v1/cluster` + path; empty if the answer has no body.

        Raises:
            ClusterError: the request was refused, or the server does not answer.
        """
        asked = urllib.parse.urlencode({"user.name": self._user} | query)
        request = urllib.request.Request(
            f"{self._url}/ws/v1/cluster{path}?{asked}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Accept": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            words = error.read().decode(errors="replace")[:500]
            raise ClusterError(f"{method} {path}: {error.code} {words}", retryable=error.code >= 500) from None
        except OSError as error:
            raise ClusterError(f"the ResourceManager does not answer: {error}", retryable=True) from None
        found: Object = json.loads(text) if text else {}
        return found

    def new_application(self) -> str:
        """An id, for one submission."""
        return str(self.call("POST", "/apps/new-application")["application-id"])

    def application(self, application: str) -> Object:
        """What the ResourceManager knows of it."""
        found: Object = self.call("GET", f"/apps/{application}")["app"]
        return found

    def kill(self, application: str) -> None:
        """Orders the end of an application and of all of its containers."""
        self.call("PUT", f"/apps/{application}/state", {"state": "KILLED"})
