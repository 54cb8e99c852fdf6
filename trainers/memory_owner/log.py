"""Lines like those of the other processes of a pod (`transport.logs`), without its libraries."""

from __future__ import annotations

import datetime
import sys


def say(level: str, event: str, **values: object) -> None:
    """One line of `key=value` text on standard error."""
    moment = datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")
    fields = {"timestamp": moment, "level": level, "event": event, **values}
    sys.stderr.write(" ".join(f"{name}={_text(value)}" for name, value in fields.items()) + "\n")
    sys.stderr.flush()


def _text(value: object) -> str:
    text = str(value)
    return f'"{text}"' if " " in text else text
