"""The number of requested rows by bucket, and the time per row.

The first shows hot servers and their hot buckets, the second slow nodes.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from elastrec.platform.transport.messages.job import BucketLoad, ServerLoad
from elastrec.trainers.parameter_server.storage import RowStore

Array = np.ndarray[Any, Any]

_MEAN_SECONDS = 15.0
"""Time over which load is averaged: some heartbeats, so that a few large minibatches have little effect."""
_MOST_NAMED = 16
"""Buckets that a heartbeat names."""


class Served(NamedTuple):
    """Requested rows since the process began, and seconds for reading and changing them."""

    rows: int = 0
    seconds: float = 0.0

    def and_also(self, rows: int, seconds: float) -> Served:
        """With one request or step more."""
        return Served(self.rows + rows, self.seconds + seconds)


class LoadMeter:
    """Rates of one server's buckets, exponentially averaged; for one thread."""

    def __init__(self) -> None:
        self._seconds = -math.inf
        # Weak, because a restore uses the memory of the earlier model's stores again when nothing else holds them.
        self._stores: list[weakref.ref[RowStore]] = []
        self._before: Array = np.zeros(0, np.int64)
        self._rates: Array = np.zeros(0)
        self._served = Served()
        self._served_rates: Array = np.zeros(2)  # rows, and seconds, per second
        self._known = 0.0  # of the mean's weights, those of times that were measured

    def measure(
        self, stores: Sequence[RowStore], owned: Array | None, served: Served, now_seconds: float
    ) -> ServerLoad:
        """The load until now.

        Args:
            owned: [V] bool, buckets that are served; None: none.
            served: until now; never less than the time before.
            now_seconds: of a monotonic clock.
        """
        if owned is None or not stores:
            self._stores = []
            return ServerLoad()
        counted = np.sum([store.load for store in stores], axis=0)
        before = [known() for known in self._stores]
        if len(stores) != len(before) or any(a is not b for a, b in zip(stores, before, strict=True)):
            # The counters of another model begin at zero.
            self._stores = [weakref.ref(store) for store in stores]
            self._before, self._rates = counted, np.zeros(len(counted))
            self._served, self._served_rates = served, np.zeros(2)
            self._seconds, self._known = now_seconds, 0.0
            return ServerLoad()
        seconds = now_seconds - self._seconds
        if seconds > 0:
            weight = 1 - math.exp(-seconds / _MEAN_SECONDS)
            self._rates += weight * ((counted - self._before) / seconds - self._rates)
            self._served_rates += weight * (np.subtract(served, self._served) / seconds - self._served_rates)
            self._known += weight * (1 - self._known)
            self._before, self._served, self._seconds = counted, served, now_seconds
        # A server that has served for some seconds is compared with older ones.
        rates = np.where(owned, self._rates, 0.0) / (self._known or 1.0)
        served_rows, busy = self._served_rates.tolist()
        hottest = np.argsort(-rates, kind="stable")[:_MOST_NAMED]
        return ServerLoad(
            rows_per_second=round(float(rates.sum()), 1),
            hottest=[
                BucketLoad(
                    bucket, round(float(rates[bucket]), 1), sum(store.bucket(bucket).size_bytes for store in stores)
                )
                for bucket in hottest.tolist()
                if rates[bucket] > 0
            ],
            seconds_per_row=busy / served_rows if served_rows > 0 else 0.0,
        )
