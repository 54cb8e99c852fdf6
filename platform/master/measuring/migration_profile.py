"""Migrations of a job, from the decisions of its master: their stages and durations. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from elastrec.platform.history import metric_names as names
from elastrec.platform.specs.shape import DONE, UNDER_WAY, MigrationSeen, MovedServer

MOST = 64
"""Number of migrations that are kept, the latest ones."""
_LAST_DECISIONS = {"job_failed", "job_stopped", "job_succeeded"}


class MigrationProfile:
    """One job's migrations, the oldest first. Not thread-safe: its owner locks."""

    def __init__(self, seen: Iterable[MigrationSeen] = ()) -> None:
        self.seen = list(seen)
        self._open = bool(self.seen) and self.seen[-1].outcome == UNDER_WAY
        self._up: dict[str, float] = {}
        self._requests: list[str] = []

    def decided(self, seconds: float, unix_seconds: float, decision: str, inputs: dict[str, Any]) -> None:
        """Adds the next decision of the job's master, at `seconds` on the job's clock."""
        match decision:
            case "shape_asked":
                self._requests.append(inputs["request"])
            case "shape_ended" if inputs["request"] in self._requests:
                self._requests.remove(inputs["request"])
        match decision:
            case "migration_begun":
                self._open = True
                begun = MigrationSeen(
                    servers_before=inputs["before"], servers_after=inputs["after"], unix_seconds=unix_seconds,
                    begun_seconds=seconds, requests=list(self._requests),
                )  # fmt: skip
                self.seen = [*self.seen, begun][-MOST:]
                self._up = {}
            case _ if not self._open:
                return
            case "pod_registered":
                self._up[inputs["pod"]] = seconds
            case "migration_copies":
                moved = self._moved(inputs["owners"], inputs["servers"])
                self._change(copying_seconds=seconds, servers_after=len(inputs["servers"]), servers=moved)
            case "migration_hands_over":
                known = self.seen[-1].requests
                later = [each for each in self._requests if each not in known]
                self._change(handing_over_seconds=seconds, requests=[*known, *later])
            case "migration_ended":
                self._end(seconds, DONE)
            case "migration_cancelled":
                if "servers" in inputs:
                    self._change(servers=self._moved(inputs["owners"], inputs["servers"]))
                self._end(seconds, inputs["reason"])
            case _ if decision in _LAST_DECISIONS:
                self._end(seconds, decision.replace("_", " "))

    def _moved(self, owners: Sequence[str], servers: Sequence[str]) -> list[MovedServer]:
        return [
            MovedServer(name=name, is_new=name not in owners, leaves=name not in servers, up_seconds=self._up.get(name))
            for name in [*owners, *(name for name in servers if name not in owners)]
        ]

    def _change(self, **fields: Any) -> None:
        self.seen[-1] = msgspec.structs.replace(self.seen[-1], **fields)

    def _end(self, seconds: float, outcome: str) -> None:
        self._change(ended_seconds=seconds, outcome=outcome)
        self._open = False

    def medians(self) -> dict[str, float]:
        """Durations of completed migrations, by metric name; empty before the first one."""
        costs = {
            names.MIGRATION_PAUSE_SECONDS: [each.pause_seconds for each in self.seen],
            names.MIGRATION_COPY_SECONDS: [each.copied_seconds for each in self.seen],
        }
        known = {name: [each for each in values if each is not None] for name, values in costs.items()}
        return {name: statistics.median(values) for name, values in known.items() if values}


def migrations_of(lines: Iterable[tuple[float, float, str, dict[str, Any]]]) -> list[MigrationSeen]:
    """The migrations in a journal's decisions: time on the job's clock, on the wall clock, decision, inputs."""
    profile = MigrationProfile()
    for line in lines:
        profile.decided(*line)
    return profile.seen
