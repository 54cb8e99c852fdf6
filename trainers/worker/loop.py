"""The whole training loop.

A worker follows the newest directive of its master. While that is TRAIN or EVALUATE, it processes leased shards,
minibatch by minibatch:

    read ─► pull rows and dense parameters ─► forward, backward ─► push gradients ─► acknowledge the samples

and with `overlap_pull` (by default after the model's first steps) the pull of the next minibatch is under way while
this one computes, so that rows and dense parameters lack this one's gradients; a push then leaves together with the
pull after that one. A minibatch counts only after the servers have applied it. After any loss (of a connection, or a
change of servers), minibatches that are not trained start again, and gradients that are not applied are sent again. In
a new generation, all of them are discarded, because the model was rolled back.
"""

from __future__ import annotations

import time

import structlog

from elastrec.platform.specs.errors import AuthenticationError, IncompatibleError, TransportError
from elastrec.platform.transport.messages.directive import Directive, Mode
from elastrec.trainers.worker.feed import Finished, Item, Waiting
from elastrec.trainers.worker.trainer import Started
from elastrec.trainers.worker.work import Worker

log = structlog.get_logger(__name__)

_PATIENCE_SECONDS = 0.25
_SETTLE_PAUSE_SECONDS, _LAST_SETTLE_SECONDS = 0.02, 2.0
_REFUSALS, _APART_SECONDS = 100, 10.0
"""This number of refusals of a server, in short succession, is not a temporary fault."""


def run(worker: Worker) -> None:
    """From the first directive to EXIT.

    Raises:
        FeedError: a shard could not be read.
        IncompatibleError: a server has other code than this worker.
        TransportError: a server refuses every step, for half a minute or longer.
        Exception: whatever the user's model or transform raised.
    """
    session = worker.session
    last_warning = ""
    refusals, refused_at = 0, 0.0
    while (directive := session.directive).mode is not Mode.EXIT:
        try:
            if directive.mode in (Mode.TRAIN, Mode.EVALUATE):
                if session.is_idle:
                    _idle(worker, directive)
                else:
                    _work(worker, directive)
            else:
                if _settle(worker, directive):
                    session.reached(directive.version)
                    session.wait_for_change(directive, 1.0)
                else:
                    session.wait_for_change(directive, _SETTLE_PAUSE_SECONDS)
        except (AuthenticationError, IncompatibleError):
            raise
        except TransportError as error:
            if not error.retryable:
                refusals = refusals + 1 if time.monotonic() - refused_at < _APART_SECONDS else 1
                refused_at = time.monotonic()
                if refusals > _REFUSALS:
                    raise
            if str(error) != last_warning:  # an unreachable server would fill the log
                log.warning("step_dropped", reason=str(error), generation=directive.generation)
                last_warning = str(error)
            worker.drop()
            # After a rollback there is a new directive; after a temporary fault the same one is tried again.
            if not worker.trainer.redirected(error):
                session.wait_for_change(directive, _PATIENCE_SECONDS)
    _leave(worker, directive)


def _work(worker: Worker, directive: Directive) -> None:
    """Trains or evaluates until the directive changes, or this worker is ordered to be idle."""
    session = worker.session
    worker.follow(directive)
    session.reached(directive.version)
    ahead: Started | None = None
    while session.directive == directive and not session.is_idle:
        entry = worker.next(0.0 if ahead else _PATIENCE_SECONDS)
        if isinstance(entry, Item):
            started = worker.start(entry)
            if ahead:
                worker.finish(ahead, hold=True)
            ahead = started
            if not worker.trainer.overlaps(directive):
                worker.finish(ahead)
                ahead = None
            continue
        worker.trainer.release()
        if ahead:
            worker.finish(ahead)
            ahead = None
        if isinstance(entry, Waiting | Finished):
            # Others must not wait for a worker that has nothing to do.
            worker.rest(directive)
        if isinstance(entry, Finished):
            session.wait_for_change(directive, float("inf"), is_idle=False)
    if session.directive.generation == directive.generation:
        worker.trainer.release()
        if ahead:
            worker.finish(ahead)


def _idle(worker: Worker, directive: Directive) -> None:
    """Takes no minibatches, as ordered: others do not wait for this worker, and get its shards when everything is
    acknowledged."""
    session = worker.session
    orders = session.orders
    if not _settle(worker, directive):
        session.wait_for_change(directive, _SETTLE_PAUSE_SECONDS, is_idle=True)
        return
    if orders is not None and orders.is_idle:
        worker.let_go(orders)
    session.reached(directive.version)
    session.wait_for_change(directive, 1.0, is_idle=True)


def _settle(worker: Worker, directive: Directive) -> bool:
    """Acknowledges applied pushes of this generation and drops older ones; returns whether nothing is left."""
    if worker.generation == directive.generation:
        return worker.rest(directive)
    worker.abandon()
    return True


def _leave(worker: Worker, directive: Directive) -> None:
    deadline = time.monotonic() + _LAST_SETTLE_SECONDS
    try:
        # Other workers complete the step for which pushes of this worker wait; after its end, servers drop waiting
        # pushes.
        while not _settle(worker, directive) and time.monotonic() < deadline:
            time.sleep(_SETTLE_PAUSE_SECONDS)
    except TransportError as error:
        log.warning("left_without_flush", reason=str(error))
        worker.drop()
    worker.close()
    worker.session.flush(timeout_seconds=2.0)
    log.info("worker_done", pod=worker.session.identity.pod)
