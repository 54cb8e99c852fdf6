"""One object creates the tasks of a job, as a chain, once or several times in a DAG."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest
from airflow.sdk import DAG

from elastrec.operators.training_job import TrainingJobGroup, training_tasks

CHAIN = ["prepare_data", "warm_start", "launch", "offline_phase", "evaluate_and_gate", "register", "finish"]


def edges(dag: DAG) -> set[tuple[str, str]]:
    return {(task.task_id, after) for task in dag.tasks for after in task.downstream_task_ids}


def test_the_graph_of_a_job_is_a_chain_with_a_teardown() -> None:
    with DAG("clicks", schedule=None) as dag:
        tasks = training_tasks(jobs_folder="jobs", job_file="clicks.yaml")
    assert edges(dag) == {*pairwise(CHAIN), ("launch", "finish")}
    assert tasks.finish.is_teardown and tasks.launch.is_setup
    assert dag.task_ids == CHAIN


def test_a_dag_may_hold_several_jobs_each_in_a_group_of_its_name() -> None:
    with DAG("both", schedule=None) as dag:
        small = TrainingJobGroup("small", jobs_folder="jobs", job_file="clicks.yaml")
        large = TrainingJobGroup(
            "large", jobs_folder="jobs", job_file="clicks.yaml", group={"tooltip": "the large one"}
        )
        small >> large
    assert set(dag.task_ids) == {f"{group}.{task}" for group in ("small", "large") for task in CHAIN}
    assert ("small.finish", "large.prepare_data") not in edges(dag), "a teardown does not hold up what follows"
    assert ("small.register", "large.prepare_data") in edges(dag)
    assert large.tooltip == "the large one"


@pytest.mark.parametrize("deferrable", [True, False])
def test_all_tasks_that_wait_defer_or_none(deferrable: bool) -> None:
    with DAG("clicks", schedule=None):
        tasks = training_tasks(jobs_folder="jobs", deferrable=deferrable)
    waiting = (tasks.offline_phase, tasks.evaluate_and_gate, tasks.register, tasks.finish)
    assert [task.deferrable for task in waiting] == [deferrable] * 4


def test_arguments_reach_the_task_that_they_name() -> None:
    limit = timedelta(hours=6)
    with DAG("clicks", schedule=None):
        tasks = training_tasks(
            jobs_folder="jobs",
            elastrec_conn_id="{{ var.value.cluster }}",
            deferrable=False,
            arguments={"offline_phase": {"execution_timeout": limit}, "register": {"deferrable": True}},
        )
    assert tasks.offline_phase.execution_timeout == limit and tasks.launch.execution_timeout is None
    assert (tasks.offline_phase.deferrable, tasks.evaluate_and_gate.deferrable, tasks.register.deferrable) == (
        False,
        False,
        True,
    )
    assert "elastrec_conn_id" in tasks.launch.template_fields
    assert tasks.launch.elastrec_conn_id == "{{ var.value.cluster }}"


def test_arguments_of_a_task_that_there_is_not_are_refused() -> None:
    with (
        DAG("clicks", schedule=None),
        pytest.raises(ValueError, match=r"\['train'\] are no tasks; allowed: prepare_data"),
    ):
        training_tasks(jobs_folder="jobs", arguments={"train": {}})
