"""`python -m tests.faults.live.scaling_task JOB SERVERS TRY`: the process of an Airflow task that requests another
number of servers.

Its environment must define the connection `elastrec_default` and the home of Airflow. It prints the output of the task.
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
