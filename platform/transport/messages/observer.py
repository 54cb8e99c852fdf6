"""What observers say to the job master (the command line, Airflow's operators and triggers), and what it answers.

Observers look, stop a job, name its run and ask for another shape. Units: seconds, bytes, samples.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.shape import PlacesChange
from elastrec.platform.transport.messages.job import Message


class GetStatus(Message, frozen=True):
    """Observers: the CLI, Airflow's triggers."""


class Status(Message, frozen=True):
    """`metrics_json` is a TrainingMetrics; `failure` holds reason and traceback once the job failed.

    Attributes:
        run_id: the job's run in MLflow; empty while it has none.
        shape_requests: for another shape: all that are open, and the latest that have ended, the oldest first.
    """

    metrics_json: bytes
    failure: str = ""
    run_id: str = ""
    shape_requests: list[ShapeRequest] = []


class StopJob(Message, frozen=True):
    """Stop now; pods exit, the phase becomes Stopped. Idempotent.

    Attributes:
        owner: refused when it is not empty and somebody else has taken the job over since.
    """

    reason: str
    owner: str = ""


class TakeOver(Message, frozen=True):
    """From now on only this owner (and people, who name none) may stop the job. The last one wins; journalled."""

    owner: str


class NameRun(Message, frozen=True):
    """The MLflow run of a job that was launched while MLflow was away. The first one stays.

    Attributes:
        run_id: what the job has measured, and what it will, is written there.
    """

    run_id: str


class SaveNow(Message, frozen=True):
    """Make a checkpoint record as soon as possible."""


class WorkerOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What workers should do otherwise than the job file says; what is None stays as it was ordered before.

    Attributes:
        batch_size: rows per minibatch. With bsp, whose steps keep their size, the worker's share of the rows of a step
            beside the batch sizes of the others.
        learning_rate_scale: factor of all learning rates; 1: as the job file says.
        is_idle: true: it takes no minibatch, and others train its shards; false: it trains.
        resets: everything that is not named is as the job file says again.
    """

    batch_size: int | None = None
    learning_rate_scale: float | None = None
    is_idle: bool | None = None
    resets: bool = False


class OrderWorkers(Message, frozen=True):
    """Gives workers orders; see PodOrders. The answer is OrdersAnswer.

    Orders of named workers hold from the next minibatch of each on. Those of all workers hold for the workers that join
    later, too, and from one step on: workers pause for a record, and go on with the new orders.

    Attributes:
        pods: names of workers; empty: all of them.
        dry_run: only say what each worker would be ordered.
    """

    order: WorkerOrder
    pods: list[str] = []
    dry_run: bool = False


class OrderedWorker(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker is ordered; `batch_size` None: as the job file says."""

    pod: str
    batch_size: int | None
    learning_rate_scale: float
    is_idle: bool


class OrdersAnswer(Message, frozen=True):
    """Answer to OrderWorkers; refused orders have a reason, and change nothing.

    Attributes:
        workers: what those that were named are ordered then.
    """

    reason: str = ""
    workers: list[OrderedWorker] = []


class FinishJob(Message, frozen=True):
    """The observer has read the result: the master may exit. Refused while the job is not final."""


class PodMove(msgspec.Struct, frozen=True, kw_only=True):
    """A worker or parameter server whose place another pod is to take, which starts first.

    Attributes:
        pod: its name.
        leaves_node: the other pod must not run on the same node, because that is slow or bad.
    """

    pod: str
    leaves_node: bool = False


REQUEST_TIMEOUT_SECONDS = 3600.0
LONGEST_REQUEST_TIMEOUT_SECONDS = 86400.0


class ChangeShape(Message, frozen=True):
    """The one entry for changes of a running job: how many pods of which size, and which are to be moved.

    What is not named stays as it was wanted last. Open requests that name the same field or the same pod are
    superseded; all others are reached together with this one. The answer is ShapeAnswer.

    Attributes:
        change: a size is reached in place where the pod's node has the room, else by pods that take over from the old.
        moves: pods to be moved.
        plan_id: of the plan behind it. The same id asked twice is the same request; empty: each is another one.
        expected_version: refuse unless the wanted shape still has this version (`Profile.shape_version`); None:
            whatever it is now.
        asked_by: who wants it, for the job's history: a policy's name; `reason`: why, in words.
        timeout_seconds: a request that is not reached by then is given up; the pods that work stay as they are.
        dry_run: only say whether and how it is possible: the answer has no id, and no reason when it is.
    """

    change: dict[Role, PlacesChange] = {}
    moves: list[PodMove] = []
    plan_id: str = ""
    expected_version: int | None = None
    asked_by: str = ""
    reason: str = ""
    timeout_seconds: float = REQUEST_TIMEOUT_SECONDS
    dry_run: bool = False


class TakeBackShape(Message, frozen=True):
    """Gives a request for a shape up: what it named is as it was wanted before, and no pod is moved because of it.

    The answer is Done. Refused while buckets change hands.

    Attributes:
        frees_plan: its plan may be asked for again. Else who asks for the plan once more finds this request, so that a
            retry does not undo what a person has decided.
    """

    request_id: str
    frees_plan: bool = False


class ShapeAnswer(Message, frozen=True):
    """Answer to ChangeShape; refused requests have a reason and no id.

    Attributes:
        prospects: of a dry run: what would happen, one line per kind of change.
    """

    request_id: str = ""
    reason: str = ""
    prospects: list[str] = []

    @property
    def accepted(self) -> bool:
        return bool(self.request_id)


class ShapeOutcome(StrEnum):
    """How a request for a shape ended."""

    OPEN = "open"  # not yet
    DONE = "done"
    REFUSED = "refused"  # the cluster will never give such a pod, or the pods that it gives do not work
    SUPERSEDED = "superseded"  # by a later request, or by the end of the job
    TAKEN_BACK = "taken back"
    TIMED_OUT = "timed out"  # its pods found no room, or it took longer than its asker allows
    FAILED = "failed"  # rows could not be copied


class ShapeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a shape, as GetStatus reports it.

    Attributes:
        wanted: what was asked for, in words.
        plan_id, asked_by: see ChangeShape.
    """

    request_id: str
    wanted: str
    outcome: ShapeOutcome
    reason: str = ""
    plan_id: str = ""
    asked_by: str = ""
