"""When a day of the click log is complete: write it clustered by session, and record what that brings."""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG, Asset, Param, PartitionedAssetTimetable

from elastrec.operators.clustering import ClusterPartitionOperator, InspectPartitionOperator
from elastrec.operators.settings import CLICK_LOG_ASSET, CLUSTERED_CLICK_LOG_ASSET

JOBS = Path(__file__).parent / "jobs"
PARTITION = "{{ dag_run.partition_key or params.partition or '' }}"

DOCUMENTATION = """
### The click log by sessions

| task | what it does |
|---|---|
| `cluster` | writes the day with each session's rows side by side; produces that day of `clustered_click_log` |
| `inspect` | measures what repeats in it and what deduplication saves; figures and a picture go to an MLflow run |

Runs when the asset `click_log` gets a day (see `click_log_arrived`). By hand: *Trigger*, with the day in `partition`.
`job_file` is a job on the log as it comes, `destination` is where the clustered log goes; a job that trains on that
path with `deduplication: auto` computes each repeated row once.
"""

with DAG(
    dag_id="click_log_clustered",
    description="Cluster each new day of the click log by session.",
    doc_md=DOCUMENTATION,
    schedule=PartitionedAssetTimetable(assets=Asset(CLICK_LOG_ASSET)),
    catchup=False,
    params={
        "job_file": Param("demo.yaml", title="Job file", type="string", description_md="A job on the log as it comes."),
        "destination": Param("demo_data/clustered_clicks", title="Clustered log", type="string"),
        "partition": Param(None, title="Day", type=["string", "null"], description_md="Only for a run by hand."),
    },
    tags=["elastrec", "data"],
):
    cluster = ClusterPartitionOperator(
        task_id="cluster",
        jobs_folder=JOBS,
        job_file="{{ params.job_file }}",
        path="{{ params.destination }}",
        partition=PARTITION,
        outlets=[Asset(CLUSTERED_CLICK_LOG_ASSET)],
    )
    inspect = InspectPartitionOperator(
        task_id="inspect",
        jobs_folder=JOBS,
        job_file="{{ params.job_file }}",
        path="{{ params.destination }}",
        partition=PARTITION,
    )
    cluster >> inspect
