"""Sums of a worker's steps between two heartbeats, with the coarse sketch of predictions before the update."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from elastrec.platform.data.sketch import BinaryMetricsSketch
from elastrec.platform.transport.job_messages import WindowMetrics

FloatArray = np.ndarray[Any, np.dtype[np.float32]]

_COUNTERS = tuple(name for name in WindowMetrics.__struct_fields__ if name not in ("sketch", "number"))


class Window:
    """Collects what WindowMetrics reports. Thread-safe: the loop adds, the heartbeat takes.

    Predictions are kept as they came and are sorted into the sketch by the heartbeat, off the training loop.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taking = threading.Lock()
        self._totals: dict[str, float] = dict.fromkeys(_COUNTERS, 0)
        self._rows: list[tuple[FloatArray, FloatArray]] = []
        self._number = 0
        self._undelivered: WindowMetrics | None = None

    def add(self, **amounts: float) -> None:
        """Adds to the counters of these names (the fields of WindowMetrics)."""
        with self._lock:
            for name, amount in amounts.items():
                self._totals[name] += amount

    def add_predictions(self, predictions_B: FloatArray, labels_B: FloatArray) -> None:
        """Adds probabilities and labels, both `[B]` float32, measured before the update."""
        with self._lock:
            self._rows.append((predictions_B, labels_B))

    def take(self) -> WindowMetrics:
        """The oldest window that was not delivered yet: the same one until `delivered`, then what came since."""
        with self._taking:
            if self._undelivered is None:
                self._undelivered = self._close()
            return self._undelivered

    def delivered(self, window: WindowMetrics) -> None:
        """The master has counted this window; only now is the next one closed."""
        with self._taking:
            if self._undelivered is window:
                self._undelivered = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits to be delivered."""
        with self._taking:
            return self._undelivered is None and not self._totals["steps"]

    def _close(self) -> WindowMetrics:
        with self._lock:
            totals, self._totals = self._totals, dict.fromkeys(_COUNTERS, 0)
            rows, self._rows = self._rows, []
        encoded = b""
        if rows:
            sketch = BinaryMetricsSketch.coarse()
            sketch.update(np.concatenate([row[0] for row in rows]), np.concatenate([row[1] for row in rows]))
            encoded = sketch.encode()
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
            sketch=encoded,
        )
