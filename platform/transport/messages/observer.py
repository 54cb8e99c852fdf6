"""Messages of observers (the command line, Airflow's operators and triggers) to the job master, and its answers.

Observers read the status, stop a job, set its run and request another shape. Units: seconds, bytes, samples.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.shape import PlacesChange, Shape
from elastrec.platform.transport.messages.directive import PodOrders
from elastrec.platform.transport.messages.job import Message


class GetStatus(Message, frozen=True):
    """Requests the status of the job."""


class Status(Message, frozen=True):
    """`metrics_json` is a TrainingMetrics; `failure` has reason and traceback if the job has failed.

    Attributes:
        run_id: the job's run in MLflow; empty while it has none.
        shape_requests: for another shape: all that are open, and the latest that have ended, the oldest first.
        shape: the wanted one; None: a master of a version that did not report it.
        orders: for all workers, also if they wait for the end of a step; None: there are none.
    """

    metrics_json: bytes
    failure: str = ""
    run_id: str = ""
    shape_requests: list[ShapeRequest] = []
    shape: Shape | None = None
    orders: PodOrders | None = None


class StopJob(Message, frozen=True):
    """Stop now; pods exit, the phase becomes Stopped. Idempotent.

    Attributes:
        owner: if it is not empty and another owner has taken the job over, the request is refused.
    """

    reason: str
    owner: str = ""


class TakeOver(Message, frozen=True):
    """From now on, only this owner (and users, who name none) may stop the job. The last one wins; journalled."""

    owner: str


class NameRun(Message, frozen=True):
    """Sets the MLflow run of a job that was launched while MLflow did not answer. The first one stays.

    Attributes:
        run_id: the run for all earlier and later measurements of the job.
    """

    run_id: str


class SaveNow(Message, frozen=True):
    """Make a checkpoint record as soon as possible."""


class WorkerOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Overrides of the job file for workers; fields that are None keep their earlier orders.

    Attributes:
        batch_size: rows per minibatch. With bsp, whose steps keep their size, the worker's share of a step is in
            proportion to the batch sizes of all workers.
        learning_rate_scale: factor of all learning rates; 1: as in the job file.
        is_idle: True: it takes no minibatches, and others train its shards; False: it trains.
        resets: whether all other fields are reset to the job file.
    """

    batch_size: int | None = None
    learning_rate_scale: float | None = None
    is_idle: bool | None = None
    resets: bool = False


class OrderWorkers(Message, frozen=True):
    """Gives workers orders; see PodOrders. The answer is OrdersAnswer.

    Orders for named workers apply from their next minibatch on. Orders for all workers apply from the same step on, and
    also to workers that join later: workers pause for a record, and continue with the new orders.

    Attributes:
        pods: names of workers; empty: all of them.
        dry_run: whether to only return the resulting orders.
    """

    order: WorkerOrder
    pods: list[str] = []
    dry_run: bool = False


class OrderedWorker(msgspec.Struct, frozen=True, kw_only=True):
    """The orders of one worker; `batch_size` None: as in the job file."""

    pod: str
    batch_size: int | None
    learning_rate_scale: float
    is_idle: bool


class OrdersAnswer(Message, frozen=True):
    """Answer to OrderWorkers; refused orders have a reason, and change nothing.

    Attributes:
        workers: the resulting orders of the named workers.
    """

    reason: str = ""
    workers: list[OrderedWorker] = []


class FinishJob(Message, frozen=True):
    """The observer has read the result: the master may exit. Refused while the job is not final."""


class PodMove(msgspec.Struct, frozen=True, kw_only=True):
    """A worker or parameter server to be replaced by another pod, which starts first.

    Attributes:
        pod: its name.
        leaves_node: whether the other pod must run on another node, for example because the node is slow.
    """

    pod: str
    leaves_node: bool = False


REQUEST_TIMEOUT_SECONDS = 3600.0
LONGEST_REQUEST_TIMEOUT_SECONDS = 86400.0


class ChangeShape(Message, frozen=True):
    """Requests a change of a running job: the number and size of pods, and pods to be moved. All changes use this
    message.

    Fields that are not named stay as they are wanted. Open requests for the same field or the same pod are superseded;
    all others are fulfilled together with this one. The answer is ShapeAnswer.

    Attributes:
        change: pods are resized in place if their node has room, otherwise replaced.
        moves: pods to be moved.
        plan_id: of the plan. Requests with the same id are one request; empty: each is a separate one.
        expected_version: refuse unless the wanted shape still has this version (`Profile.shape_version`); None: any.
        asked_by: the requester, for the job's history, such as the name of a policy; `reason`: in words.
        timeout_seconds: time after which the request is given up; the working pods stay as they are.
        dry_run: whether to only check if and how it is possible: the answer has no id, and a reason if it is not.
    """

    change: dict[Role, PlacesChange] = {}
    moves: list[PodMove] = []
    plan_id: str = ""
    expected_version: int | None = None
    asked_by: str = ""
    reason: str = ""
    timeout_seconds: float = REQUEST_TIMEOUT_SECONDS
    dry_run: bool = False


class CancelShape(Message, frozen=True):
    """Cancels a request for a shape: its fields return to their earlier values, and its pods are not moved.

    The answer is Done. Refused during the hand-over of buckets.

    Attributes:
        frees_plan: whether its plan may be requested again. Otherwise, a repeated request for the plan finds this
            request, so that a retry does not undo the decision of a user.
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
    REFUSED = "refused"  # the cluster will never create such a pod, or its pods do not work
    SUPERSEDED = "superseded"  # by a later request, or by the end of the job
    CANCELLED = "cancelled"
    TIMED_OUT = "timed out"  # there was no room for its pods, or it took longer than allowed
    FAILED = "failed"  # rows could not be copied


class ShapeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a shape, as GetStatus reports it.

    Attributes:
        wanted: the requested change, in words.
        plan_id, asked_by: see ChangeShape.
    """

    request_id: str
    wanted: str
    outcome: ShapeOutcome
    reason: str = ""
    plan_id: str = ""
    asked_by: str = ""
