"""Every three minutes: measure the running jobs, plan for all of them together, hand the plans over."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, CronTriggerTimetable, TriggerRule, XComArg

from elastrec.operators.scaling import (
    LEFT_ALONE,
    ApplyPlanOperator,
    ProposeOperator,
    RunningJobsOperator,
    SelectOperator,
)

SETTINGS = Path(__file__).parent / "scaling.yaml"

DOCUMENTATION = """
### Auto scaling

| task | what it does |
|---|---|
| `running_jobs` | asks the masters how fast jobs were in each configuration; the rest is skipped if there is none |
| `propose` | one per job: fits the throughput model, lists what could be done and what it would bring |
| `select` | what teams own is given back to them; then the choice across all jobs under what is free |
| `apply` | one per job: hands the plan to the master; the decision and all candidates go into the job's MLflow run |

Workers are added and removed while the job trains. A change of servers is refused by the master until it is possible
without a pause. Policy, prices, shares and priorities stand in `scaling.yaml`; `elastrec plan --explain` shows the same
round on the command line without applying it.
"""

with DAG(
    dag_id="auto_scaling",
    description="Scale the running jobs by what they have measured.",
    doc_md=DOCUMENTATION,
    schedule=CronTriggerTimetable("*/3 * * * *", timezone="UTC"),
    catchup=False,
    max_active_runs=1,
    # A round that did not come to its end within the next ones has been overtaken by what jobs measured since.
    dagrun_timeout=timedelta(minutes=10),
    render_template_as_native_obj=True,
    tags=["elastrec", "scaling"],
):
    running_jobs = RunningJobsOperator(task_id="running_jobs", settings_file=SETTINGS)
    propose = ProposeOperator.partial(
        task_id="propose", settings_file=str(SETTINGS), map_index_template="{{ map_index_name }}"
    ).expand(profile=running_jobs.output)
    select = SelectOperator(
        task_id="select",
        settings_file=SETTINGS,
        proposed=propose.output,
        left_alone=XComArg(running_jobs, key=LEFT_ALONE),
        # Without a job to propose for, there may still be one that has to give workers back.
        trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS,
    )
    ApplyPlanOperator.partial(task_id="apply", map_index_template="{{ map_index_name }}").expand(plan=select.output)
