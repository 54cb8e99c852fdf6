"""Which tests run side by side, and which start services.

Two streams of tests run side by side: jobs of real processes mostly wait, while the rest of the suite computes.

`pytest -n 2` (pytest-xdist) runs one process of tests per stream. The first that is ready takes the tests of whole
jobs, the others take all other tests, and a process that has nothing left helps. Tests of one file stay together and
in order, for they share fixtures; so do those of the Airflow stack, which takes minutes to start.
"""

from __future__ import annotations

from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import NodeManager, WorkerController

WHOLE_JOBS = ("tests/e2e/", "tests/faults/")
SERVICES = (
    *WHOLE_JOBS,
    "tests/bad_input/",
    "tests/benchmarks/",
    "tests/docs/test_commands.py",
    "tests/operators/",
    "tests/platform/cli/",
    "tests/platform/clusters/",
    "tests/platform/data/stream/test_kafka.py",
    "tests/platform/history/",
    "tests/platform/jobs/",
    "tests/platform/master/test_main.py",
    "tests/spikes/",
    "tests/test_mutants.py",
    "tests/test_streams.py",
    "tests/trainers/export/",
    "tests/trainers/parameter_server/test_pod.py",
    "tests/trainers/worker/",
)
"""Rooms and files whose tests start node agents, pods, brokers, MLflow, Airflow, or other long-lived processes:
`make quick` leaves them out (marker `services`)."""
_ONE_STACK = "tests/e2e/airflow_stack/"

# A process of tests that is interrupted ends what its fixtures have started; execnet gives it 15 s for that.
NodeManager.EXIT_TIMEOUT = 20


class Streams(LoadScopeScheduling):
    """Gives whole files away: those of jobs to the first process, the others to all others."""

    def __init__(self, config: object, log: Producer | None = None) -> None:
        super().__init__(config, log)
        # Files in the order of their names: which of them last long does not follow from their number of tests.
        self.config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return _ONE_STACK if nodeid.startswith(_ONE_STACK) else nodeid.partition("::")[0]

    def _assign_work_unit(self, node: WorkerController) -> None:
        runs_jobs = node is self.nodes[0]
        own = next((file for file in self.workqueue if file.startswith(WHOLE_JOBS) is runs_jobs), None)
        if own is not None:
            self.workqueue.move_to_end(own, last=False)
        super()._assign_work_unit(node)
