"""The forms of a step's time: the sum of its parts as in DLRover-RM §4.1, or parts that overlap.

    T_own  = α_grad·m/λ_w + α_out·p/λ_w + β                                          what a worker does itself
    T_srv  = α_upd·w/(p·λ_p) + α_sync·(M/p)/(B/w) + α_emb·m·D/p + α_in·w/λ_p         what it waits for servers
    T_iter = (T_own^q + T_srv^q)^(1/q)

q = 1 and α_out = α_in = 0 is the paper's sum. Pods with CPU quotas do not use them while they wait, and catch up
afterwards; workers also wait for servers at different moments. Then a step takes hardly longer than the longer of the
two parts, and q is larger. Every request has a cost at both ends, whatever its size: a worker sends one to each server
(α_out), and a server answers one of each worker (α_in), so that the work of each server falls less than their number
rises.

Shape legend: R rows (equations), K coefficients, in the order of `COLUMNS`. No fitting here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from elastrec.platform.scaling.model.columns import TERMS, Columns, Floats, rows_of
from elastrec.platform.scaling.types import Coefficients, ModelShape

COLUMNS = (*TERMS, "fan_in", "fan_out", "fixed")
"""Columns of a row; a split β has one more column, its part in T_grad."""
SERVERS = slice(1, len(TERMS) + 1)
"""Columns of a worker's waits for servers."""
_FAN_OUT = COLUMNS.index("fan_out")


def together(own: Floats | np.float64, servers: Floats | np.float64, overlap: float) -> Floats:
    """T_iter from its two parts, which are ≥ 0 and have one shape."""
    if overlap == 1.0:
        return np.asarray(own + servers)
    longer = np.maximum(np.maximum(own, servers), np.finfo(np.float64).tiny)
    return np.asarray(longer * ((own / longer) ** overlap + (servers / longer) ** overlap) ** (1.0 / overlap))


@dataclass(frozen=True)
class Form:
    """The form of a job's steps.

    Attributes:
        overlap: q ≥ 1.
        by_request: α_out and α_in are fitted; otherwise they are 0.
    """

    overlap: float = 1.0
    by_request: bool = False

    @staticmethod
    def of(coefficients: Coefficients) -> Form:
        """The form in which coefficients were fitted."""
        return Form(coefficients.overlap, coefficients.fan_out > 0 or coefficients.fan_in > 0)

    @property
    def refinements(self) -> int:
        """The number of refinements of the paper's sum: 0 to 2."""
        return (self.overlap != 1.0) + self.by_request

    @property
    def unknowns(self) -> int:
        """The number of unknowns beyond those of the paper's sum: q, and the two costs of a request."""
        return (self.overlap != 1.0) + 2 * self.by_request

    def rows(self, shape: ModelShape, columns: Columns) -> Floats:
        """The factors of the coefficients, float64 of shape (N, K)."""
        return rows_of(shape, columns, by_request=self.by_request)

    def seconds(self, rows_RK: Floats, theta_K: Floats) -> Floats:
        """T_iter, shape (R,)."""
        if self.overlap == 1.0:
            return np.asarray(rows_RK @ theta_K)
        return together(*_parts(rows_RK, theta_K), self.overlap)

    def slopes(self, rows_RK: Floats, theta_K: Floats) -> tuple[Floats, Floats]:
        """T_iter, shape (R,), and its derivatives by the coefficients, shape (R, K).

        T_iter is homogeneous in the coefficients: derivatives times coefficients add up to it (Euler).
        """
        if self.overlap == 1.0:
            return rows_RK @ theta_K, rows_RK
        own_R, servers_R = _parts(rows_RK, theta_K)
        seconds_R = together(own_R, servers_R, self.overlap)
        slopes_RK = rows_RK * ((own_R / seconds_R) ** (self.overlap - 1.0))[:, None]
        slopes_RK[:, SERVERS] = (
            rows_RK[:, SERVERS] * ((servers_R / seconds_R) ** (self.overlap - 1.0))[:, None]
        )  # fmt: skip
        return seconds_R, slopes_RK

    def coefficients(self, theta_K: Floats, compute_fixed: float | None) -> Coefficients:
        """A vector in the order of COLUMNS as a value."""
        return Coefficients(
            **dict(zip(COLUMNS, theta_K.tolist(), strict=True)), overlap=self.overlap, compute_fixed=compute_fixed
        )


def vector(coefficients: Coefficients) -> Floats:
    """In the order of COLUMNS, shape (K,)."""
    return np.array([getattr(coefficients, name) for name in COLUMNS])


def _parts(rows_RK: Floats, theta_K: Floats) -> tuple[Floats, Floats]:
    servers_R = rows_RK[:, SERVERS] @ theta_K[SERVERS]
    own_R = rows_RK[:, 0] * theta_K[0] + rows_RK[:, _FAN_OUT:] @ theta_K[_FAN_OUT:]
    return own_R, servers_R
