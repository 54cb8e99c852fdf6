"""The values that travel between tasks as plain JSON objects.

Each holds all that the tasks behind it need, so a task takes one value, from the task before it, and the graph of a
job's tasks is a chain. In a task's output the job is the object `training_job` instead of the text `job_json`. Nothing
is computed here. Operators import it when they run: it loads the platform, which would slow the parsing of DAGs down.
"""

from __future__ import annotations

import msgspec

from elastrec.platform.jobs.types import Allocation, GateDecision, Launched, Prepared


class AllocatedJob(Allocation, frozen=True, kw_only=True):
    """Output of `WarmStartOperator`: the start-up sizes of a job."""

    prepared: Prepared


class LaunchedJob(Launched, frozen=True, kw_only=True):
    """Output of `LaunchJobOperator`: a job in the cluster, and with what it was launched."""

    prepared: Prepared
    allocation: Allocation


class TrainedJob(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `OfflinePhaseOperator`: the job, beside the fields of its last `TrainingMetrics`."""

    launched: LaunchedJob


class JudgedJob(GateDecision, frozen=True, kw_only=True):
    """Output of `EvaluateAndGateOperator`: the gate's decision about a job."""

    launched: LaunchedJob
