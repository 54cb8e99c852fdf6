"""The distribution of tests over parallel processes.

Two streams run in parallel, because jobs of real processes mostly wait, while the rest of the suite computes.

`pytest -n 2` (pytest-xdist) runs one process of tests per stream. The first ready process takes the tests of whole
jobs, the others take all other tests, and an idle process takes over remaining tests of either kind. Tests of one file
stay together and in order, because they share fixtures. The same applies to the tests of the Airflow stack, which takes
minutes to start, and to those of parameter servers, whose kernels would otherwise be compiled by both processes. The
longest scopes come first, so that none of them runs alone at the end.
"""

from __future__ import annotations

from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import NodeManager, WorkerController

WHOLE_JOBS = ("tests/e2e/", "tests/faults/")
_STACK, _SERVERS = "tests/e2e/airflow_stack/", "tests/trainers/parameter_server/"
TOGETHER = {
    _STACK: _STACK,
    "tests/faults/drawn/test_contents.py": _SERVERS,
    "tests/trainers/deduplication/": _SERVERS,
    "tests/trainers/embedding/": _SERVERS,
    _SERVERS: _SERVERS,
}
"""Rooms and files whose tests run in one process, each with the name of its scope."""
FIRST = (
    _STACK,
    "tests/faults/test_kills.py",
    "tests/e2e/test_run.py",
    "tests/faults/test_campaign.py",
    _SERVERS,
    "tests/faults/live/test_live_jobs.py",
    "tests/faults/test_resume.py",
    "tests/faults/test_surroundings.py",
    "tests/faults/test_bad_stores.py",
    "tests/e2e/test_feature_steps.py",
    "tests/docs/test_commands.py",
    "tests/e2e/test_deduplication.py",
    "tests/platform/master/service/test_service.py",
    "tests/platform/master/test_long_run.py",
)
"""The scopes that last longest, the longest first; all others follow in the order of their names."""

# A process of tests that is interrupted ends what its fixtures have started; execnet gives it 15 s for that.
NodeManager.EXIT_TIMEOUT = 20


class Streams(LoadScopeScheduling):
    """Gives whole files away: those of jobs to the first process, the others to all others."""

    def __init__(self, config: object, log: Producer | None = None) -> None:
        super().__init__(config, log)
        # Not in the order of their numbers of tests, from which it does not follow how long they last.
        self.config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return next((name for room, name in TOGETHER.items() if nodeid.startswith(room)), nodeid.partition("::")[0])

    def _assign_work_unit(self, node: WorkerController) -> None:
        runs_jobs = node is self.nodes[0]
        scopes = [*(scope for scope in FIRST if scope in self.workqueue), *self.workqueue]
        scope = next((scope for scope in scopes if scope.startswith(WHOLE_JOBS) is runs_jobs), scopes[0])
        self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)
