"""Waits for what Airflow does in its own time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from elastrec.operators.rest import AirflowClient


def wait(ready: Callable[[], Any], seconds: float, what: str) -> Any:
    """What `ready` returns as soon as it is something."""
    deadline = time.monotonic() + seconds
    while not (found := ready()):
        assert time.monotonic() < deadline, f"{what}: not there within {seconds:.0f} s"
        time.sleep(0.2)
    return found


def finished(airflow: AirflowClient, dag_id: str, run_id: str, seconds: float = 270) -> str:
    """The state in which a run ended."""

    def state() -> str:
        found = airflow.run_state(dag_id, run_id)
        return found if found in ("success", "failed") else ""

    return str(wait(state, seconds, f"the end of {run_id}"))
