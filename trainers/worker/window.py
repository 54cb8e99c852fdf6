"""Sums of a worker's steps between two heartbeats, with coarse sketches of predictions before the update."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np

from elastrec.platform.data.metrics.binary import COARSE_BINS
from elastrec.platform.data.metrics.heads import HeadSketches, Predicted
from elastrec.platform.transport.messages.job import WindowMetrics

_COUNTERS = tuple(name for name in WindowMetrics.__struct_fields__ if name not in ("sketch", "number", "losses"))


class Window:
    """Collects what WindowMetrics reports. Thread-safe: the loop adds, the heartbeat takes.

    Predictions are stored unchanged; the heartbeat converts them to sketches, outside of the training loop.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taking = threading.Lock()
        self._totals: dict[str, float] = dict.fromkeys(_COUNTERS, 0)
        self._before_step: dict[str, float] = dict.fromkeys(_COUNTERS, 0)
        self._losses: dict[str, float] = {}
        self._rows: list[Sequence[Predicted]] = []
        self._number = 0
        self._undelivered: WindowMetrics | None = None

    def add(
        self, *, losses: Mapping[str, float] | None = None, predicted: Sequence[Predicted] = (), **amounts: float
    ) -> None:
        """Adds to the counters of these names (the fields of WindowMetrics); all of one step at once.

        What is added before a step belongs to the window of that step, because a step may take longer than a window.

        Args:
            losses: sums of named losses.
            predicted: predictions of the heads for the rows of a minibatch before the update.
        """
        with self._lock:
            for name, amount in amounts.items():
                self._before_step[name] += amount
            if amounts.get("steps"):
                for name, amount in self._before_step.items():
                    self._totals[name] += amount
                self._before_step = dict.fromkeys(_COUNTERS, 0)
            for name, amount in (losses or {}).items():
                self._losses[name] = self._losses.get(name, 0.0) + amount
            if predicted:
                self._rows.append(predicted)

    def forget_waits(self) -> None:
        """Drops what was added since the last step, because the worker does not wait for rows any more."""
        with self._lock:
            self._before_step = dict.fromkeys(_COUNTERS, 0)

    def take(self) -> WindowMetrics:
        """The oldest window that was not delivered yet; the same one until `delivered`, then the next."""
        with self._taking:
            if self._undelivered is None:
                self._undelivered = self._close()
            return self._undelivered

    def delivered(self, window: WindowMetrics) -> None:
        """The master has counted this window; the next one is closed only now."""
        with self._taking:
            if self._undelivered is window:
                self._undelivered = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to deliver."""
        with self._taking:
            return self._undelivered is None and not self._totals["steps"]

    def _close(self) -> WindowMetrics:
        with self._lock:
            totals, self._totals = self._totals, dict.fromkeys(_COUNTERS, 0)
            rows, self._rows = self._rows, []
            losses, self._losses = self._losses, {}
        encoded = b""
        if rows:
            sketches = HeadSketches(COARSE_BINS)
            sketches.update(_joined(heads) for heads in zip(*rows, strict=True))
            encoded = sketches.encode()
        self._number += 1
        return WindowMetrics(
            number=self._number,
            samples=int(totals["samples"]),
            steps=int(totals["steps"]),
            bytes_pulled=int(totals["bytes_pulled"]),
            bytes_pushed=int(totals["bytes_pushed"]),
            bytes_read=int(totals["bytes_read"]),
            bytes_read_plain=int(totals["bytes_read_plain"]),
            loss_sum=totals["loss_sum"],
            wait_seconds=totals["wait_seconds"],
            pull_seconds=totals["pull_seconds"],
            compute_seconds=totals["compute_seconds"],
            push_seconds=totals["push_seconds"],
            losses=losses,
            sketch=encoded,
        )


def _joined(parts: Sequence[Predicted]) -> Predicted:
    """One head's rows of several minibatches together."""
    return parts[0]._replace(
        prediction_B=np.concatenate([part.prediction_B for part in parts]),
        label_B=np.concatenate([part.label_B for part in parts]),
    )
