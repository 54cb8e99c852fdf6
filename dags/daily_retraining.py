"""Every day: trains on yesterday's clicks, evaluates on the newest day, and publishes the model if it passes the
gate."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, CronTriggerTimetable

from elastrec.operators.params import training_params
from elastrec.operators.runs import ALL_BUT_BACKFILLS
from elastrec.operators.settings import DAILY_HOUR, JOB_FILE_VARIABLE, LOG_TIMEZONE
from elastrec.operators.training_job import training_tasks

JOBS = Path(__file__).parent / "jobs"
# The first scheduled run is the next one, not the run that was missed just before the DAG was enabled.
NEVER_LATE = timedelta(0)

DOCUMENTATION = """
### Daily retraining

| task | what it does |
|---|---|
| `prepare_data` | checks the job, finds its rows and the checkpoint to continue from; fails if the job cannot run |
| `warm_start` | chooses the number and size of workers and servers for the start |
| `launch` | starts the job on the cluster, or attaches to the job that this run has already started |
| `offline_phase` | waits until the job has trained and evaluated; progress is in its log |
| `evaluate_and_gate` | exports the model and compares it with the champion on the same rows |
| `register` | registers the model in MLflow; it becomes champion if it passed |
| `finish` | removes the job from the cluster, also after a failure |

**Job:** the schedule trains the job file in the Airflow variable `elastrec_job_file`, a file of `jobs/` or an absolute
path; without the variable the first task fails with a message. For a run by hand, the form may name another job file.

**Days:** they follow from the logical date. The run of January 3rd, 02:00, evaluates on January 2nd, the newest
complete day, and trains on January 1st; a run by hand with the same logical date trains on the same rows. Days in the
form take precedence over the logical date. To train on all available data, empty the field *Logical Date*.

Days are in the time zone of the log, `spec.data.timezone` of the job file. If that is not UTC, set the environment
variable `ELASTREC_LOG_TIMEZONE` of Airflow to the same name, so that runs begin at 02:00 in this time zone.

Each task has a button that opens the job's **MLflow run**. If a job fails, its last log lines are in the log of the
task that waited for it. *Clear* and retries attach to the running job; there is never a second job for the same logical
date. If the job file has changed meanwhile, the task fails.

**Days that were missed:** *Trigger* a run for each, the earliest first, with the logical date that it would have had.
The runs wait for each other. If later days were trained before, the model of a missed day becomes champion only if it
is better than theirs. A backfill is refused, because Airflow would run several of its days at the same time.

The schedule trains on one day and evaluates on the next, so a run needs two complete days of the click log. The DAG
`click_log_arrived` starts the same run as soon as there is an event for a day.
"""

with DAG(
    dag_id="daily_retraining",
    description="Train on yesterday, evaluate on the newest day, publish the model if it passes the gate.",
    doc_md=DOCUMENTATION,
    # Without an interval, the logical date of a scheduled run is its start time, as with a run by hand.
    schedule=CronTriggerTimetable(f"0 {DAILY_HOUR} * * *", timezone=LOG_TIMEZONE, run_immediately=NEVER_LATE),
    catchup=False,
    # Each day continues from the checkpoint of the day before, so days are trained one after the other.
    max_active_runs=1,
    allowed_run_types=ALL_BUT_BACKFILLS,
    render_template_as_native_obj=True,
    params=training_params(JOBS),
    tags=["elastrec", "training"],
):
    training_tasks(
        jobs_folder=JOBS,
        job_file=f"{{{{ params.job_file or var.value.get('{JOB_FILE_VARIABLE}', '') }}}}",
        job="{{ params.job }}",
        overrides="{{ params.overrides }}",
        start_from="{{ params.start_from }}",
        evaluation_day="{{ params.evaluation_day }}",
        interval_start="{{ params.interval_start }}",
        interval_end="{{ params.interval_end }}",
    )
