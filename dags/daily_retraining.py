"""Every day: train on yesterday's clicks, evaluate on the newest day, publish what passes the gate."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, CronTriggerTimetable

from elastrec.operators.params import training_params
from elastrec.operators.settings import DAILY_HOUR, JOB_FILE_VARIABLE, LOG_TIMEZONE
from elastrec.operators.training_job import training_tasks

JOBS = Path(__file__).parent / "jobs"
# The first scheduled run is the next one, not the one that was missed just before the DAG was switched on.
NEVER_LATE = timedelta(0)

DOCUMENTATION = """
### Daily retraining

| task | what it does |
|---|---|
| `prepare_data` | checks the job, finds its rows and the checkpoint to continue from; refuses what cannot run |
| `warm_start` | chooses how many workers and servers to start with |
| `launch` | starts the job on the cluster, or attaches to the one that this run already started |
| `offline_phase` | waits until the job has trained and evaluated; progress is in its log |
| `evaluate_and_gate` | exports the model and compares it with the champion on the same rows |
| `register` | registers the model in MLflow; it becomes champion if it passed |
| `finish` | removes the job from the cluster, also after a failure |

**Which job:** the schedule trains the job file that the Airflow variable `elastrec_job_file` names, a file of `jobs/`
or an absolute path; without it the first task fails and says so. A run by hand may name another one in its form.

**Which days:** the logical date decides. The run of January 3rd, 02:00, evaluates on January 2nd, the newest complete
day, and trains on January 1st; a run by hand with the same logical date trains on the same rows. Days in the form go
before it. To train on all data that is there, empty the field *Logical Date*.

Days are those of the log's own time zone, `spec.data.timezone` of the job file. For a log that does not count days in
UTC, give the environment variable `ELASTREC_LOG_TIMEZONE` of Airflow the same name, so that runs begin at 02:00 there.

Each task has a button to its **MLflow run**. A failed job's last lines are in the log of the task that waited for it.
*Clear* and retries attach to the running job; there is never a second one for the same logical date. A job file that
was changed meanwhile is refused.

The schedule trains on one day and evaluates on the next, so a run needs two complete days of the click log. The DAG
`click_log_arrived` starts the same run as soon as a day's partition is announced.
"""

with DAG(
    dag_id="daily_retraining",
    description="Train on yesterday, evaluate on the newest day, publish what passes the gate.",
    doc_md=DOCUMENTATION,
    # Without an interval, the logical date of a scheduled run is the time it starts at, as that of a run by hand is.
    schedule=CronTriggerTimetable(f"0 {DAILY_HOUR} * * *", timezone=LOG_TIMEZONE, run_immediately=NEVER_LATE),
    catchup=False,
    # A day continues from the checkpoint of the day before, so days are trained one after the other.
    max_active_runs=1,
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
