"""When a day of the click log is complete: starts the daily retraining at once instead of at 02:00."""

from __future__ import annotations

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Asset, PartitionedAssetTimetable

from elastrec.operators.params import scheduled_moment
from elastrec.operators.settings import CLICK_LOG_ASSET

DOCUMENTATION = """
### The click log has a new day

When a day is complete, create an event of the asset `click_log` with the day as its partition key (`2026-01-31`):
in a DAG that writes the log by naming the asset as an outlet, otherwise with the REST API
(`POST /api/v2/assets/events` with `asset_id` and `partition_key`).

The model is trained on the day before, and evaluated on the day of the event. The run gets the logical date of the
scheduled run for the same days, so only the first of the two runs trains. Like the scheduled run, it uses the job file
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
        # A day of the log's calendar, in any time zone.
        conf={"evaluation_day": "{{ dag_run.partition_key }}"},
        skip_when_already_exists=True,
    )
