"""When a day of the click log is complete: start the daily retraining that was waiting for it, not at 02:00."""

from __future__ import annotations

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Asset, PartitionedAssetTimetable

from elastrec.operators.params import scheduled_moment
from elastrec.operators.settings import CLICK_LOG_ASSET

DOCUMENTATION = """
### The click log has a new day

Announce a complete day by an event of the asset `click_log` with the day as its partition key (`2026-01-31`):
a producing DAG does it by naming the asset as an outlet, everything else by the REST API
(`POST /api/v2/assets/events` with `asset_id` and `partition_key`).

The day before it is trained on, the announced day is evaluated on. The run gets the logical date of the scheduled run
for the same days, so that a day is trained once, whichever comes first. Like the scheduled run it trains the job file
that the Airflow variable `elastrec_job_file` names.
"""

with DAG(
    dag_id="click_log_arrived",
    description="Start daily_retraining for a day of the click log as soon as it is complete.",
    doc_md=DOCUMENTATION,
    schedule=PartitionedAssetTimetable(assets=Asset(CLICK_LOG_ASSET)),
    catchup=False,
    user_defined_macros={"scheduled_moment": scheduled_moment},
    tags=["elastrec", "training"],
):
    TriggerDagRunOperator(
        task_id="retrain",
        trigger_dag_id="daily_retraining",
        logical_date="{{ scheduled_moment(dag_run.partition_key) }}",
        # A day of the log's own calendar, whatever its time zone is.
        conf={"evaluation_day": "{{ dag_run.partition_key }}"},
        skip_when_already_exists=True,
    )
