"""Every three minutes: measure the running jobs, plan for all of them together, hand the plans over."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, CronTriggerTimetable

from elastrec.operators.scaling import MigratePodsOperator, PlanRoundOperator

SETTINGS = Path(__file__).parent / "scaling.yaml"

DOCUMENTATION = """
### Auto scaling

| task | what it does |
|---|---|
| `plan` | asks all masters how fast their jobs were in each configuration, fits models, chooses across all jobs |
| `migrate` | one per job that is to change: hands the plan to its master, waits, writes both into its MLflow run |

The grid shows what became of each plan, in this order: what was proposed, what was chosen, whether the job was migrated
to it, and for how long training paused. A `migrate` that is ended by a person takes its request back. After two minutes
it leaves a job to its master, so that one slow pod does not delay the next round of all others.

The log of `plan` says what becomes of every job, and why. What teams own is given back to them first.

Workers and parameter servers are added and removed while the job trains. Policy, prices, shares and priorities stand in
`scaling.yaml`; `elastrec plan --explain` shows the same round on the command line without applying it.
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
    plan = PlanRoundOperator(task_id="plan", settings_file=SETTINGS)
    MigratePodsOperator.partial(
        task_id="migrate", planned_by="plan", map_index_template="{{ map_index_name }}",
        patience=timedelta(minutes=2), deferrable=True,
    ).expand(plan=plan.output)  # fmt: skip
