"""The tasks of one training job as one object of a DAG. The operators describe how each task works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow.sdk import AssetAlias, TaskGroup

from elastrec.operators import settings
from elastrec.operators.publishing import EvaluateAndGateOperator, FinishJobOperator, RegisterModelOperator
from elastrec.operators.training import (
    LaunchJobOperator,
    OfflinePhaseOperator,
    PrepareDataOperator,
    WarmStartOperator,
)


@dataclass(frozen=True)
class TrainingTasks:
    """The operators of one training job, in their order; `finish` is the teardown of `launch`."""

    prepare_data: PrepareDataOperator
    warm_start: WarmStartOperator
    launch: LaunchJobOperator
    offline_phase: OfflinePhaseOperator
    evaluate_and_gate: EvaluateAndGateOperator
    register: RegisterModelOperator
    finish: FinishJobOperator


def training_tasks(
    *,
    elastrec_conn_id: str = settings.DEFAULT_CONNECTION_ID,
    deferrable: bool = True,
    arguments: Mapping[str, Mapping[str, Any]] | None = None,
    **job: Any,
) -> TrainingTasks:
    """Adds the tasks of a training job to the DAG or task group at hand.

    Args:
        elastrec_conn_id: the connection; a template.
        deferrable: whether to wait in the triggerer, or in the tasks, which then occupy a worker slot.
        arguments: further arguments of single operators, by task id, for example
            `{"offline_phase": {"execution_timeout": timedelta(hours=6)}}`.
        job: jobs_folder, job_file, job, overrides, start_from, evaluation_day, interval_start, interval_end of
            `PrepareDataOperator`.

    Raises:
        ValueError: `arguments` names an unknown task.
    """
    names = list(TrainingTasks.__dataclass_fields__)
    given = dict(arguments or {})
    if unknown := sorted(set(given) - set(names)):
        raise ValueError(f"arguments: {unknown} are no tasks; allowed: {', '.join(names)}")

    def of(task_id: str, **own: Any) -> dict[str, Any]:
        return {"task_id": task_id, "elastrec_conn_id": elastrec_conn_id, **own, **given.get(task_id, {})}

    prepare_data = PrepareDataOperator(**of("prepare_data", **job))
    warm_start = WarmStartOperator(**of("warm_start", prepared=prepare_data.output))
    launch = LaunchJobOperator(**of("launch", allocation=warm_start.output))
    offline_phase = OfflinePhaseOperator(**of("offline_phase", launched=launch.output, deferrable=deferrable))
    evaluate_and_gate = EvaluateAndGateOperator(
        **of("evaluate_and_gate", trained=offline_phase.output, deferrable=deferrable)
    )
    register = RegisterModelOperator(
        **of(
            "register",
            decision=evaluate_and_gate.output,
            deferrable=deferrable,
            outlets=[AssetAlias(settings.MODELS_ALIAS)],
        )
    )
    finish = FinishJobOperator(**of("finish", launched=launch.output, deferrable=deferrable))
    register >> finish.as_teardown(setups=launch)
    return TrainingTasks(prepare_data, warm_start, launch, offline_phase, evaluate_and_gate, register, finish)


class TrainingJobGroup(TaskGroup):
    """Trains, evaluates and registers the model of a job file: the tasks of `training_tasks` under one name.

        with DAG("views_daily", schedule="@daily", catchup=False, max_active_runs=1):
            TrainingJobGroup("views", jobs_folder=Path(__file__).parent, job_file="views.yaml")

    A DAG may have several groups, also with job files of the same `metadata.name`; each group has its own job.

    Args:
        group_id: name of the group; ids of its tasks begin with it.
        group: arguments of `TaskGroup`.
        job: arguments of `training_tasks`.

    Attributes:
        tasks: the operators.
    """

    def __init__(self, group_id: str, *, group: Mapping[str, Any] | None = None, **job: Any) -> None:
        super().__init__(group_id, **(group or {}))
        with self:
            self.tasks = training_tasks(**job)
