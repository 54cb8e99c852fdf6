"""A job of real processes, and the requests that a user may send to it during training.

While a file exists, its steps are slow, so that awaited events happen during training. Without the file, its steps are
fast until the end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from elastrec.checkpoints import list_records, list_terms
from elastrec.platform import jobs
from elastrec.platform.clusters.pods import PodStatus
from elastrec.platform.jobs.identity import secret_of
from elastrec.platform.jobs.scaling import asking
from elastrec.platform.jobs.watching.masters import live_master, pod_of_master, wait_for_master
from elastrec.platform.master.pods.launch import master_pod
from elastrec.platform.master.reporting.explanation import Explanation, read_explanation
from elastrec.platform.master.reporting.ledger import read_ledger
from elastrec.platform.specs.errors import ClusterError, TransportError
from elastrec.platform.specs.metrics import Phase, Role, TrainingMetrics
from elastrec.platform.specs.splits import StreamPositions
from elastrec.platform.specs.text.loading import job_from_json
from elastrec.platform.transport import RpcClient, new_token
from elastrec.platform.transport.messages.job import Done
from elastrec.platform.transport.messages.observer import PodMove, SaveNow, ShapeOutcome, ShapeRequest
from elastrec.trainers.parameter_server.messages import GetStats, Stats
from tests.faults.campaign.accounts import Accounts, check_ledger, journals, positions_of
from tests.faults.campaign.checking import SIZE
from tests.faults.campaign.job import EPOCHS, campaign_job
from tests.faults.campaign.plan import Shape
from tests.faults.campaign.site import Site
from tests.faults.live.contents import Contents, contents_of
from tests.processes import wait_for
from tests.shapes import change

WORKERS, SERVERS = 2, 2
SLOW_SECONDS = 1.0
"""Two workers then train for more than five minutes, several times as long as what tests do meanwhile."""
MOST_BYTES = 2 * 2**30
PATIENCE_SECONDS, _LOOK_SECONDS = 240.0, 0.2


class LiveJob:
    """A running job.

    Args:
        is_slow: whether steps are slow until `hurry` is called.
        epochs: number of passes over the rows of the site.
        admit_after: number of times that an id is seen before it gets a row.
        slow_seconds: pause of a slow step.
        faults: fields of the section `faults`.
        checkpoint: more fields of the section `checkpoint`.
    """

    def __init__(
        self,
        site: Site,
        name: str,
        *,
        is_slow: bool,
        mode: str = "bsp",
        epochs: int = EPOCHS,
        workers: int = WORKERS,
        servers: int = SERVERS,
        admit_after: int = 1,
        slow_seconds: float = SLOW_SECONDS,
        faults: Mapping[str, Any] = MappingProxyType({}),
        **checkpoint: Any,
    ) -> None:
        self.site, self.platform, self._epochs = site, site.platform, epochs
        self._slow = site.home / f"{name} is slow"
        self._slow.touch() if is_slow else None
        self._resting = site.home / f"{name} is at rest"
        content = json.loads(campaign_job(Shape(mode, 0, workers, servers), site.data).model_dump_json(by_alias=True))
        content["metadata"]["name"] = name
        spec = content["spec"]
        spec["model"]["options"] = {
            "pause_seconds": slow_seconds,
            "pause_while": str(self._slow),
            "waits_for": str(self._resting),
        }
        for table in spec["tables"].values():
            table["admit_after"] = admit_after
        spec["resources"]["worker"]["cores"] = 1.0
        spec["training"]["epochs"] = epochs
        spec["checkpoint"] |= checkpoint
        # Not the short ones of the campaign: no pod is lost because a busy machine lets it wait.
        spec["faults"] = {"heartbeat_interval": "250ms", **faults}
        spec["scaling"] |= {"maximum_parameter_server_memory": MOST_BYTES}
        self.name = name
        self.prepared = jobs.prepare(self.platform, job_from_json(json.dumps(content)), jobs.job_id_for(name, "1"))
        self.job_id = self.prepared.job_id
        request = jobs.launch_request(self.prepared, jobs.warm_start(self.platform, self.prepared))
        self.platform.launcher.submit(master_pod(request, self.platform.cluster_config, new_token()))
        wait_for_master(self.platform, self.job_id).close()
        self.rows_of_steps: dict[str, dict[int, int]] = {}

    def hurry(self) -> None:
        self._slow.unlink(missing_ok=True)

    def metrics(self) -> TrainingMetrics:
        return jobs.observe(self.platform, self.job_id).metrics

    def ask_for(self, *moved: str, **shape: int) -> str:
        """The request's id."""
        moves = [PodMove(pod=pod) for pod in moved]
        for dry_run in (True, False):
            answer = asking.ask_for_shape(self.platform, self.job_id, change(**shape), moves=moves, dry_run=dry_run)
            assert not answer.reason and answer.accepted is not dry_run
        return answer.request_id

    def give_up(self, **shape: int) -> ShapeRequest:
        """A request that is not reached, once it has ended."""
        *_, last = asking.follow_request(self.platform, self.job_id, self.ask_for(**shape))
        assert last.outcome is not ShapeOutcome.DONE, last
        return last

    def change(self, *moved: str, **shape: int) -> None:
        """Returns once all that was asked for is reached."""
        self._follow(self.ask_for(*moved, **shape))

    def _follow(self, request: str) -> None:
        *_, last = asking.follow_request(self.platform, self.job_id, request)
        assert last.outcome is ShapeOutcome.DONE, last

    @contextlib.contextmanager
    def at_rest(self) -> Iterator[None]:
        """Nothing is trained meanwhile: every worker is moved to a new pod, which has registered and takes no shard."""
        self._resting.mkdir()
        try:
            self.change(*self.pods(Role.WORKER))
            yield
        finally:
            shutil.rmtree(self._resting)

    def change_at_rest(self, *, workers: int) -> None:
        """Another number of workers, of which those that are to leave may go on: to the order to end."""
        request = self.ask_for(workers=workers)
        for pod in self.metrics().pods:
            if pod.role is Role.WORKER and pod.state == "Leaving":
                (self._resting / pod.name).touch()
        self._follow(request)

    def contents(self) -> Contents:
        """What a record holds that is made now."""
        store, before = str(self.site.store), len(self._records())
        with live_master(self.platform, self.job_id) as master:
            assert master is not None and master.call(SaveNow(), Done).accepted
        wait_for(lambda: len(self._records()) > before, PATIENCE_SECONDS, f"a record in {store}")
        return contents_of(self._records()[0])

    def _records(self) -> list[str]:
        return [uri for uri, _ in list_records(str(self.site.store), self.name, self.job_id)]

    def pods(self, role: Role) -> dict[str, PodStatus]:
        """By name; without those that end, or have ended and are still there for their logs."""
        pods = self.platform.launcher.pods(self.job_id)
        return {pod.name: pod for pod in pods if pod.role is role and not (pod.is_ending or pod.phase.is_final)}

    def sizes_of_servers(self) -> list[int]:
        return [pod.size.memory_bytes for pod in self.pods(Role.PARAMETER_SERVER).values()]

    def workers_at_work(self) -> list[str]:
        """Workers that have trained since they were there."""
        pods = self.metrics().pods
        return [pod.name for pod in pods if pod.role is Role.WORKER and pod.state == "Running" and pod.samples]

    def has_workers(self, count: int) -> Callable[[], bool]:
        def has() -> bool:
            pods = [pod for pod in self.platform.launcher.pods(self.job_id) if pod.role is Role.WORKER]
            return len(self.workers_at_work()) == len(pods) == count

        return has

    def look_at_steps(self) -> None:
        """Keeps how many rows the servers' steps have had until now."""
        with contextlib.suppress(TransportError, ClusterError):
            master = pod_of_master(self.platform, self.job_id)
            secret = secret_of(self.platform, master) if master else None
            pods = [p for p in self.platform.launcher.pods(self.job_id) if p.role is Role.PARAMETER_SERVER]
            for pod in pods if secret is not None else []:
                with contextlib.closing(RpcClient(pod.address, secret.token, secret.tls)) as client:
                    self.rows_of_steps[pod.name] = client.call(GetStats(), Stats, timeout_seconds=1.0).steps_by_rows

    def train_to_the_end(self) -> TrainingMetrics:
        self.hurry()

        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (metrics := self.metrics()).phase.is_final:
            assert time.monotonic() < deadline, f"the job does not end: {metrics.model_dump_json()}"
            if metrics.phase is Phase.EVALUATING:
                self.look_at_steps()
            time.sleep(_LOOK_SECONDS)
        assert metrics.phase is Phase.SUCCEEDED, metrics.reason
        jobs.finish(self.platform, self.job_id)
        return metrics

    def accounts(self, read_positions: Callable[[str], StreamPositions] = positions_of) -> tuple[Accounts, Explanation]:
        """What its ledger says, checked against its story."""
        store = str(self.site.store)
        ledger, story = read_ledger(store, self.job_id), read_explanation(store, self.job_id)
        assert ledger is not None and story is not None
        begun = journals(list_terms(store, self.name, self.job_id))
        size = dataclasses.replace(SIZE, epochs=self._epochs)
        return check_ledger(ledger.to_pylist(), story, size, read_positions, begun), story

    def stop(self) -> None:
        self.hurry()
        jobs.stop(self.platform, self.job_id, "the test is over")


@contextlib.contextmanager
def live_job(site: Site, name: str, *, is_slow: bool = True, **options: Any) -> Iterator[LiveJob]:
    """Stopped at the end; `options` as of `LiveJob`."""
    job = LiveJob(site, name, is_slow=is_slow, **options)
    try:
        yield job
    except BaseException:
        # pytest shows it with the failure: the master's decisions, each with its inputs.
        with contextlib.suppress(ClusterError):  # the master has gone
            print(*site.platform.launcher.logs(f"{job.job_id}-master", tail_lines=200), sep="\n")
        raise
    finally:
        job.stop()
