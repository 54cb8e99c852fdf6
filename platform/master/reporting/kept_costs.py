"""What the pods of a job have cost, in its checkpoint store next to its ledger, for masters without the journal.

Written with each record and at the end of the job. What pods cost between the last record and the kill of a master is
not counted.
"""

from __future__ import annotations

import msgspec
import structlog

from elastrec.checkpoints import open_store
from elastrec.platform.history.points import Costs
from elastrec.platform.master.pods.launch import LaunchRequest
from elastrec.platform.specs.errors import CheckpointError

log = structlog.get_logger(__name__)


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The file.

    Attributes:
        term: of the master that wrote it.
    """

    term: int
    costs: Costs


def _key(request: LaunchRequest) -> str:
    return f"{request.training_job.metadata.name}/ledger/{request.job_id}.costs.json"


def keep_costs(request: LaunchRequest, term: int, costs: Costs) -> None:
    """Stores the costs until now, in place of those that earlier masters have stored.

    Raises:
        CheckpointError: the store refused.
    """
    open_store(request.store).put(_key(request), msgspec.json.encode(_Kept(term=term, costs=costs)))


def earlier_costs(request: LaunchRequest) -> Costs | None:
    """The costs of earlier masters of this run of the job; None if there are none, or they cannot be read."""
    key = _key(request)
    try:
        opened = open_store(request.store)
        if not opened.exists(key):
            return None
        kept = msgspec.json.decode(opened.get(key), type=_Kept)
    except (CheckpointError, msgspec.MsgspecError) as error:
        log.warning(
            "earlier_costs_not_read", job=request.job_id, store=request.store, key=key, reason=str(error),
            consequence="the costs of earlier masters are not counted",
        )  # fmt: skip
        return None
    return kept.costs if kept.term > request.earlier_terms else None
