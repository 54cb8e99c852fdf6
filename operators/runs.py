"""Which runs a DAG allows."""

from __future__ import annotations

from typing import Any

from airflow.utils.types import DagRunType

# Any, because a DAG's annotation is an enumeration with the same values in a private module of Airflow's SDK.
ALL_BUT_BACKFILLS: tuple[Any, ...] = tuple(kind for kind in DagRunType if kind is not DagRunType.BACKFILL_JOB)
"""Kinds of runs of a DAG whose runs must not overlap: Airflow does not count the runs of a backfill for
`max_active_runs`, so they would run beside the others and, with the default of its API, ten at a time."""
