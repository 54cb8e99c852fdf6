"""A worker's part in the rounds of bsp, equal on all servers, with a share from the first server."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from elastrec.trainers.embedding.lane import Lane, Request
from elastrec.trainers.embedding.replies import results
from elastrec.trainers.parameter_server.messages import Accepted, Join, Share, Stamp


def join(lanes: Sequence[Lane], batch_size: int) -> Share | None:
    """Makes the worker a member of all servers, in bsp and ssp.

    Args:
        lanes: in the order of the routing.
        batch_size: with bsp, the maximum of rows of the requested share; 0: none.

    Returns:
        A share of the first round in which all servers wait for this worker; None: it has none within a second.

    Raises:
        TransportError: see Lane.
    """
    number = max(answer.round for answer in _ask(lanes, -1, 0))
    if not batch_size:
        return None
    share = _ask(lanes, number, batch_size)[0].share
    return share if share is not None and share.round == number else None


def _ask(lanes: Sequence[Lane], number: int, batch_size: int) -> list[Accepted]:
    first, others = (Request(partial(_request, number, size)) for size in (batch_size, 0))
    replies = [lane.send(others if place else first) for place, lane in enumerate(lanes)]
    return [answer for answer, _ in results(replies)]


def _request(number: int, batch_size: int, stamp: Stamp) -> Join:
    return Join(stamp=stamp, round=number, batch_size=batch_size)
