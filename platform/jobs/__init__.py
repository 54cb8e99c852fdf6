"""The steps of a job, which both the command line and Airflow execute.

prepare → warm_start → launch → observe … → evaluate_and_gate → register → result → finish_job (or stop at any time).
Every step can be repeated; `types` has the values that are passed between them. No step trains anything itself.
"""

from elastrec.platform.jobs.ending.evaluation import (
    EvaluatorState,
    evaluate_and_gate,
    evaluator_pod,
    evaluator_state,
    gate_decision,
    register,
    result,
    start_evaluator,
)
from elastrec.platform.jobs.ending.publishing import (
    away_message,
    finish_job,
    forget,
    publish_patience_seconds,
    with_run,
    with_tracking,
)
from elastrec.platform.jobs.ending.tracking import tracking_answers
from elastrec.platform.jobs.starting.kept_launch import KeptLaunch
from elastrec.platform.jobs.starting.launching import (
    finish,
    job_page,
    launch,
    launch_request,
    stop,
    take_over,
)
from elastrec.platform.jobs.starting.preparation import job_id_for, prepare
from elastrec.platform.jobs.starting.resuming import (
    attached,
    days_to_continue,
    named_fields,
    prepare_again,
    remove_unsuccessful,
    resumable,
)
from elastrec.platform.jobs.starting.same_job import refuse_other_training
from elastrec.platform.jobs.starting.starting_sizes import allocation_again, warm_start
from elastrec.platform.jobs.surroundings import DEFAULT_STORE, Platform, checked_tls_folder, home_folder, tls_folder
from elastrec.platform.jobs.types import Allocation, GateDecision, Interval, Launched, Prepared, Registered, Result
from elastrec.platform.jobs.watching.job_pods import pods_of_job
from elastrec.platform.jobs.watching.masters import wait_for_master
from elastrec.platform.jobs.watching.observation import Observation, failure_report, jobs, observe
from elastrec.platform.jobs.watching.past import explanation, is_trained, ledger, report, result_of

__all__ = [
    "DEFAULT_STORE",
    "Allocation",
    "EvaluatorState",
    "GateDecision",
    "Interval",
    "KeptLaunch",
    "Launched",
    "Observation",
    "Platform",
    "Prepared",
    "Registered",
    "Result",
    "allocation_again",
    "attached",
    "away_message",
    "checked_tls_folder",
    "days_to_continue",
    "evaluate_and_gate",
    "evaluator_pod",
    "evaluator_state",
    "explanation",
    "failure_report",
    "finish",
    "finish_job",
    "forget",
    "gate_decision",
    "home_folder",
    "is_trained",
    "job_id_for",
    "job_page",
    "jobs",
    "launch",
    "launch_request",
    "ledger",
    "named_fields",
    "observe",
    "pods_of_job",
    "prepare",
    "prepare_again",
    "publish_patience_seconds",
    "refuse_other_training",
    "register",
    "remove_unsuccessful",
    "report",
    "result",
    "result_of",
    "resumable",
    "start_evaluator",
    "stop",
    "take_over",
    "tls_folder",
    "tracking_answers",
    "wait_for_master",
    "warm_start",
    "with_run",
    "with_tracking",
]
