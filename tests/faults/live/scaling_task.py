"""`python -m tests.faults.live.scaling_task JOB SERVERS TRY`: the process of a task that asks a job for other servers.

It needs a connection `elastrec_default` and a home of Airflow in its environment. It prints the task's output.
"""

from __future__ import annotations

import json
import sys

from elastrec.operators.scaling import ScaleJobOperator
from tests.operators.steps import context


def main() -> int:
    """Of one try of the task."""
    job_id, servers, number = sys.argv[1:]
    task = ScaleJobOperator(task_id="scale", job_id=job_id, parameter_servers=servers, deferrable=False)
    print(json.dumps(task.execute(context(task_id="scale", try_number=int(number)))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
