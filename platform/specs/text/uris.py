"""Credentials in URIs: they are masked in all text for people, and split off for the code that sends them. Pure
functions."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import unquote

_HIDDEN = "***"
# Up to the last @, because people forget to encode one. Digits before a slash are a port, not a password.
_USER_PASSWORD = re.compile(r"""([a-z][a-z0-9+.-]*://[^\s/:@\[\]]*:)(?!\d*(?:[/?#\s'"]|$))[^\s'"]*@""", re.IGNORECASE)
_USER_INFO = re.compile(r"^([a-z][a-z0-9+.-]*://)([^/?#\s]*)@", re.IGNORECASE)
# A backslash before a quotation mark belongs to JSON within JSON, which is to be JSON afterwards.
_SECRET_OPTION = re.compile(
    r"""([?&;][a-z_.-]*(?:password|passwd|pwd|secret|token)=)(?:[^&;#\s'"\\]|\\(?!['"]))+""", re.IGNORECASE
)


def masked(text: str) -> str:
    """A URI, or a message that contains URIs, with `***` in place of every password.

    Hidden are the password of `scheme://user:password@host` and the values of options such as `?password=...`.
    """
    return _SECRET_OPTION.sub(rf"\1{_HIDDEN}", _USER_PASSWORD.sub(rf"\1{_HIDDEN}@", text))


def passwords(text: str) -> set[str]:
    """What `masked` hides in a text, as it stands there and decoded."""
    found = {match[0].removeprefix(match[1]).removesuffix("@") for match in _USER_PASSWORD.finditer(text)}
    found |= {match[0].removeprefix(match[1]) for match in _SECRET_OPTION.finditer(text)}
    return found | {unquote(each) for each in found}


def is_masked(text: str) -> bool:
    """Whether a password in the text has been replaced by `masked`."""
    return _HIDDEN in passwords(text)


def mask_event(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """`masked` for every text of a log line, as a structlog processor; tracebacks count once they are formatted."""
    return {key: masked(value) if isinstance(value, str) else value for key, value in event.items()}


def without_credentials(uri: str) -> str:
    """The URI without `user:password@`."""
    return _USER_INFO.sub(r"\1", uri)


def credentials(uri: str) -> tuple[str, str] | None:
    """User and password of `scheme://user:password@host`, decoded; None where the URI has no user."""
    match = _USER_INFO.match(uri)
    user, _, password = match[2].partition(":") if match else ("", "", "")
    return (unquote(user), unquote(password)) if user else None
