"""When a day of the click log is complete: writes it clustered by session, and records the savings."""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG, Asset, Param, PartitionedAssetTimetable

from elastrec.operators.clustering import ClusterPartitionOperator, InspectPartitionOperator
from elastrec.operators.settings import (
    CLICK_LOG_ASSET,
    CLUSTERED_CLICK_LOG_ASSET,
    CLUSTERED_LOG_VARIABLE,
    JOB_FILE_VARIABLE,
)

JOBS = Path(__file__).parent / "jobs"
JOB_FILE = f"{{{{ params.job_file or var.value.get('{JOB_FILE_VARIABLE}', '') }}}}"
DESTINATION = f"{{{{ params.destination or var.value.get('{CLUSTERED_LOG_VARIABLE}', '') }}}}"
PARTITION = "{{ dag_run.partition_key or params.partition or '' }}"

DOCUMENTATION = """
### The click log by sessions

| task | what it does |
|---|---|
| `cluster` | writes the day ordered by session; creates an event for that day of `clustered_click_log` |
| `inspect` | measures repeated features and what deduplication saves; figures and a picture go to an MLflow run |

This DAG runs when the asset `click_log` gets a day (see `click_log_arrived`). By hand: *Trigger*, with the day in
`partition`. `job_file` is a job that trains on the original log, `destination` is the folder of the clustered log; for
runs that are not started by hand, the Airflow variables `elastrec_job_file` and `elastrec_clustered_log` set them. A
job that trains on the clustered log with `deduplication: auto` computes repeated features once.
"""

with DAG(
    dag_id="click_log_clustered",
    description="Cluster each new day of the click log by session.",
    doc_md=DOCUMENTATION,
    schedule=PartitionedAssetTimetable(assets=Asset(CLICK_LOG_ASSET)),
    catchup=False,
    params={
        "job_file": Param(
            None,
            title="Job file",
            type=["string", "null"],
            description_md=f"A job that trains on the original log. Empty: the variable `{JOB_FILE_VARIABLE}`.",
        ),
        "destination": Param(
            None,
            title="Clustered log",
            type=["string", "null"],
            description_md=f"Folder or URI of the clustered log. Empty: the variable `{CLUSTERED_LOG_VARIABLE}`.",
        ),
        "partition": Param(
            None, title="Day", type=["string", "null"], description_md="Only for runs that are started by hand."
        ),
    },
    tags=["elastrec", "data"],
):
    cluster = ClusterPartitionOperator(
        task_id="cluster",
        jobs_folder=JOBS,
        job_file=JOB_FILE,
        path=DESTINATION,
        partition=PARTITION,
        outlets=[Asset(CLUSTERED_CLICK_LOG_ASSET)],
    )
    inspect = InspectPartitionOperator(
        task_id="inspect",
        jobs_folder=JOBS,
        job_file=JOB_FILE,
        path=DESTINATION,
        partition=PARTITION,
    )
    cluster >> inspect
