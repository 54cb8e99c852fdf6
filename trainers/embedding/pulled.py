"""The rows and dense parameters of one pull, from all servers, in the order in which the worker uses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from elastrec.trainers.embedding.replies import Reply, results
from elastrec.trainers.embedding.routing import RoutedIds
from elastrec.trainers.parameter_server.dense.layout import DenseRouting

Array = np.ndarray[Any, Any]


class Pulled:
    """Requested rows.

    Attributes:
        routed: the requested ids.
    """

    def __init__(
        self, routed: RoutedIds, dense: DenseRouting, dimensions: Sequence[int], replies: Sequence[Reply]
    ) -> None:
        self.routed = routed
        self._dense = dense
        self._dimensions = dimensions
        self._replies = replies
        self._answers: list[list[Array]] | None = None
        self._rows: list[Array] | None = None

    def _wait(self) -> list[list[Array]]:
        if self._answers is None:
            self._answers = [arrays for _, arrays in results(self._replies)]
        return self._answers

    def rows(self) -> list[Array]:
        """Per table group, values [U_g, D_g] float32, read-only. Waits.

        Raises:
            RoutingChangedError: wait for a newer directive, then connect.
            TransportError: a server refused.
        """
        if self._rows is None:
            parts: list[list[Array]] = [[] for _ in self._dimensions]
            for server, (flat, _) in enumerate(self._wait()):
                at = 0
                for group, dimension in enumerate(self._dimensions):
                    count = self.routed.sizes[group][server]
                    parts[group].append(flat[at : at + count * dimension].reshape(count, dimension))
                    at += count * dimension
            self._rows = [each[0] if len(each) == 1 else np.concatenate(each) for each in parts]
        return self._rows

    def dense(self, out: Array | None = None) -> Array:
        """The flat dense vector [P] float32 (empty unless it was requested). Waits; raises like `rows`.

        Args:
            out: [P] float32, filled with it if it was requested.
        """
        return self._dense.joined([arrays[1] for arrays in self._wait()], out)

    @property
    def bytes(self) -> int:
        """Bytes received. Waits."""
        return sum(array.nbytes for arrays in self._wait() for array in arrays)
