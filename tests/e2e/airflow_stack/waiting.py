"""Waits for asynchronous actions of Airflow. A wait that fails shows its last observation."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from elastrec.platform.specs.errors import ClusterError
from tools.stack.rest import AirflowApiError, AirflowClient

Seen = TypeVar("Seen")
_LONGEST_SHOWN = 4000


def wait(
    observe: Callable[[], Seen], what: str, until: Callable[[Seen], Any] = bool, *, seconds: float = 300.0
) -> Seen:
    """Returns the first observation for which `until` is true; also errors of the API are observations.

    The limit is long, for a busy machine; a wait ends as soon as its condition is true.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            seen = observe()
            if until(seen):
                return seen
            shown = str(seen)
        except (AirflowApiError, ClusterError) as error:
            shown = f"{type(error).__name__}: {error}"
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s; seen last:\n{shown[-_LONGEST_SHOWN:]}"
        time.sleep(0.2)


def run_states(airflow: AirflowClient, dag_id: str, run_id: str) -> dict[str, str]:
    """The state of a run under its id, and that of each of its tasks with the number of its try."""
    states = {run_id: airflow.run_state(dag_id, run_id)}
    for name, task in airflow.tasks(dag_id, run_id).items():
        states[name] = f"{task['state']} (try {task['try_number']})"
    return states


def finished(airflow: AirflowClient, dag_id: str, run_id: str, seconds: float = 600) -> str:
    """The state in which a run ended."""

    def ended(states: dict[str, str]) -> bool:
        return states[run_id] in ("success", "failed")

    states = wait(lambda: run_states(airflow, dag_id, run_id), f"the end of {run_id}", ended, seconds=seconds)
    return states[run_id]
