"""Names and times of the provider, in one place. Times are in seconds."""

from __future__ import annotations

import os
from datetime import timedelta

CONNECTION_TYPE = "elastrec"
DEFAULT_CONNECTION_ID = "elastrec_default"
DAG_ID = "daily_retraining"
PREFIX = "/elastrec"
"""Below Airflow's address: the pages of the plug-in."""
JOB_FILE_VARIABLE = "elastrec_job_file"
"""Airflow variable: the job file of scheduled runs."""
CLUSTERED_LOG_VARIABLE = "elastrec_clustered_log"
"""Airflow variable: where the clustered click log goes."""
CLICK_LOG_ASSET = "click_log"
LOG_TIMEZONE = os.environ.get("ELASTREC_LOG_TIMEZONE", "UTC")
"""IANA time zone of the click log whose days the ready DAGs train, as `spec.data.timezone` of their job files."""
DAILY_HOUR = 2
"""When a day of the log is complete: this hour of the next day, in that zone."""
MODELS_ALIAS = "elastrec_models"
"""Asset alias of all registered models: the asset `model/NAME` of each gets an event for every version."""
CLUSTERED_CLICK_LOG_ASSET = "clustered_click_log"

POLL_SECONDS = 1.0
"""Between two looks of a trigger at its job."""
PROGRESS_SECONDS = 15.0
"""Between two progress lines in a task's log while the phase stays the same."""
FIRE_GRACE_SECONDS = 6.0
"""A trigger never fires earlier: Airflow turns success into up_for_retry when it fires while the task still defers."""
LOST_AFTER_SECONDS = 30.0
"""A job that the cluster does not know for this long is reported as lost, not as still running."""
SILENT_AFTER_SECONDS = 300.0
"""A master that does not answer for this long fails the try. Its node restarts an ended one several times before."""
UNREACHABLE_AFTER_SECONDS = 600.0
"""A cluster that does not answer for this long fails the try; the next one attaches to the job again."""
STATE_SECONDS = 120.0
"""How long Airflow may take to answer a trigger with the state of its task; then the owner of the job decides."""
KILL_SECONDS = 120.0
"""How long a trigger goes on trying to stop a job whose cluster does not answer."""
RETRIES = 3
RETRY_DELAY = timedelta(seconds=5)
RETRY_BACKOFF = 3.0
"""Each pause between two tries is so many times as long as the one before it."""
