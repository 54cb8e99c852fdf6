"""Which runs a DAG allows."""

from __future__ import annotations

from airflow.sdk.api.datamodels._generated import DagRunType

ALL_BUT_BACKFILLS = tuple(kind for kind in DagRunType if kind is not DagRunType.BACKFILL)
"""Kinds of runs of a DAG whose runs must not overlap: Airflow does not count the runs of a backfill for
`max_active_runs`, so they would run beside the others and, with the default of its API, ten at a time."""
