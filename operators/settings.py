"""Names and times of the provider, in one place. Times are in seconds."""

from __future__ import annotations

import os
from datetime import timedelta

CONNECTION_TYPE = "elastrec"
DEFAULT_CONNECTION_ID = "elastrec_default"
DAG_ID = "daily_retraining"
PREFIX = "/elastrec"
"""Path of the plug-in's pages below Airflow's address."""
JOB_FILE_VARIABLE = "elastrec_job_file"
"""Airflow variable: the job file of scheduled runs."""
CLUSTERED_LOG_VARIABLE = "elastrec_clustered_log"
"""Airflow variable: the location of the clustered click log."""
CLICK_LOG_ASSET = "click_log"
LOG_TIMEZONE = os.environ.get("ELASTREC_LOG_TIMEZONE", "UTC")
"""IANA time zone of the click log on which the DAGs in `dags/` train; the same as `spec.data.timezone` of their job
files."""
DAILY_HOUR = 2
"""A day of the log is complete at this hour of the next day, in that time zone."""
MODELS_ALIAS = "elastrec_models"
"""Asset alias of all registered models: the asset `model/NAME` of each gets an event for every version."""
CLUSTERED_CLICK_LOG_ASSET = "clustered_click_log"

POLL_SECONDS = 1.0
"""Time between two observations of a job by its trigger."""
PROGRESS_SECONDS = 15.0
"""Time between two progress lines in a task's log while the phase stays the same."""
FIRE_GRACE_SECONDS = 6.0
"""A trigger never fires earlier: if it fires while the task is still deferring, Airflow changes success to
up_for_retry."""
LOST_AFTER_SECONDS = 30.0
"""A job that the cluster does not know for this long is reported as lost."""
SILENT_AFTER_SECONDS = 300.0
"""If a master does not answer for this long, the try fails. Before that, the node restarts a master that has ended
several times."""
UNREACHABLE_AFTER_SECONDS = 600.0
"""If the cluster does not answer for this long, the try fails; the next try attaches to the job again."""
STATE_SECONDS = 120.0
"""How long a trigger waits for Airflow's answer about the state of its task; without an answer, the owner of the job
decides."""
KILL_SECONDS = 120.0
"""How long a trigger tries to stop a job while the cluster does not answer."""
RETRIES = 3
RETRY_DELAY = timedelta(seconds=5)
RETRY_BACKOFF = 3.0
"""Factor between a pause and the pause before it."""
