"""Every three minutes: measures the running jobs, plans for all of them together, and sends the plans to their
masters."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, CronTriggerTimetable

from elastrec.operators.runs import ALL_BUT_BACKFILLS
from elastrec.operators.scaling import MigratePodsOperator, PlanRoundOperator

SETTINGS = Path(__file__).parent / "scaling.yaml"

DOCUMENTATION = """
### Auto scaling

| task | what it does |
|---|---|
| `plan` | gets the speed of each job in each configuration from the masters, fits models, chooses across all jobs |
| `migrate` | one per job that is to change: sends the plan to its master, waits, writes both to its MLflow run |

The grid shows the result of each plan, in this order: the candidates, the chosen plan, whether the job was migrated,
and how long training paused. If you end a `migrate` task, its request is cancelled. After two minutes the task ends
while the master continues, so that one slow pod does not delay the next round.

The log of `plan` has the decision about every job with its reason. Shares of teams are restored first.

Workers and parameter servers are added and removed while the job trains. Policy, prices, shares and priorities are in
`scaling.yaml`; `elastrec plan --explain` shows the same round on the command line without changing anything.
"""

with DAG(
    dag_id="auto_scaling",
    description="Scale the running jobs by their measurements.",
    doc_md=DOCUMENTATION,
    schedule=CronTriggerTimetable("*/3 * * * *", timezone="UTC"),
    catchup=False,
    max_active_runs=1,
    allowed_run_types=ALL_BUT_BACKFILLS,
    # A round that has not ended during the following rounds is outdated, because jobs have new measurements.
    dagrun_timeout=timedelta(minutes=10),
    render_template_as_native_obj=True,
    tags=["elastrec", "scaling"],
):
    plan = PlanRoundOperator(task_id="plan", settings_file=SETTINGS)
    MigratePodsOperator.partial(
        task_id="migrate", planned_by="plan", map_index_template="{{ map_index_name }}",
        patience=timedelta(minutes=2), deferrable=True,
    ).expand(plan=plan.output)  # fmt: skip
