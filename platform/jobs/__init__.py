"""The life of a job, step by step, as both the command line and Airflow walk it.

prepare → warm_start → launch → observe … → evaluate_and_gate → register → result → finish (or stop at any time).
Every step can be repeated; what passes between them is in `types`. No step trains anything itself.
"""

from elastrec.platform.jobs.evaluation import (
    EvaluatorState,
    evaluate_and_gate,
    evaluator_pod,
    evaluator_state,
    gate_decision,
    register,
    result,
    start_evaluator,
)
from elastrec.platform.jobs.launching import (
    finish,
    job_page,
    launch,
    launch_request,
    remove_pods,
    stop,
    wait_for_master,
)
from elastrec.platform.jobs.observation import Observation, failure_report, jobs, observe
from elastrec.platform.jobs.past import DEFAULT_STORE, explanation, ledger
from elastrec.platform.jobs.preparation import day_interval, job_id_for, prepare
from elastrec.platform.jobs.starting_sizes import warm_start
from elastrec.platform.jobs.surroundings import Platform, home_folder, read_tls, tls_folder
from elastrec.platform.jobs.types import Allocation, GateDecision, Interval, Launched, Prepared, Registered, Result

__all__ = [
    "DEFAULT_STORE",
    "Allocation",
    "EvaluatorState",
    "GateDecision",
    "Interval",
    "Launched",
    "Observation",
    "Platform",
    "Prepared",
    "Registered",
    "Result",
    "day_interval",
    "evaluate_and_gate",
    "evaluator_pod",
    "evaluator_state",
    "explanation",
    "failure_report",
    "finish",
    "gate_decision",
    "home_folder",
    "job_id_for",
    "job_page",
    "jobs",
    "launch",
    "launch_request",
    "ledger",
    "observe",
    "prepare",
    "read_tls",
    "register",
    "remove_pods",
    "result",
    "start_evaluator",
    "stop",
    "tls_folder",
    "wait_for_master",
    "warm_start",
]
