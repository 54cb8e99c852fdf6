"""The resource–performance model of DLRover-RM §4.1: fitted to what a job measured, asked what another allocation does.

    T_iter = α_grad·m/λ_w + α_upd·w/(p·λ_p) + α_sync·(M/p)/(B/w) + α_emb·m·D/p + β        eq. 2–5
    Ψ      = w·m / T_iter                                                                 eq. 1, samples/s

One β: the four of the paper are all multiplied with 1, so that only their sum can be known. Where workers measured
their compute time by itself, T_grad = α_grad·m/λ_w + β_compute is fitted beside the total, and β has two known parts.

Shape legend: C configurations, N allocations, R rows (equations), K coefficients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from elastrec.platform.scaling.columns import TERMS, Columns, Floats, features
from elastrec.platform.scaling.least_squares import fit_plain, fit_relative, rmsle
from elastrec.platform.scaling.profile import Profile, require_rows, summarise
from elastrec.platform.scaling.types import Coefficients, JobProfile, ModelShape, Observation, Prior
from elastrec.platform.specs.errors import ScalingError

FADED_AFTER = 10
"""So many measured configurations leave nothing of a prior's weight."""
PRIOR_ERROR = 0.3
"""How far a prior's shape is believed to be off, relative, where nothing was measured."""
LEAST_ERROR = 0.03
"""Two runs of one configuration differ by this much on a shared cluster; no fit is believed to be better."""
CONDITION_LIMIT = 100.0
"""Above it, noise of 1 % in the times may move coefficients by their own size."""
COMPUTE_WEIGHT = 0.03
"""Of a measured compute part against a measured step. Pulls and pushes cost a worker CPU time too, so that the part
says less than T_grad: it is to decide where steps leave the gradient open, not against them."""
_ASSUMED_SHARES = (0.6, 0.1, 0.1, 0.1)
"""Of T_iter, by TERMS, the rest is fixed: assumed of a job without a prior, with a weight that only breaks ties."""
_TIE_BREAK = 1e-3


@dataclass(frozen=True)
class Prediction:
    """For N allocations; arrays are float64 of shape (N,).

    Attributes:
        relative_error: one standard deviation of the two others, as a share.
    """

    iteration_seconds: Floats
    samples_per_second: Floats
    relative_error: Floats


@dataclass(frozen=True)
class ThroughputModel:
    """A fitted model, and how far it is to be trusted.

    Attributes:
        rmsle, plain_rmsle: of this fit and of plain NNLS on the measured steps; 0 without measurements.
        configurations: distinct ones that were measured.
        rank, condition: of the measured rows alone, columns brought to one length; the rank is at most `columns`.
        columns: coefficients that this job's steps depend on (no dense parameters: no synchronisation).
        identified: the measured rows alone determine every coefficient.
        notes: for people; why it is not identified, what was refused, what was assumed.
        information_KK: Σ x·xᵀ/σ² over relative rows, 5 × 5 (TERMS, then fixed): confidence comes from it.
    """

    shape: ModelShape
    coefficients: Coefficients
    rmsle: float
    plain_rmsle: float
    configurations: int
    rank: int
    columns: int
    condition: float
    identified: bool
    notes: tuple[str, ...]
    information_KK: Floats

    def predict(self, columns: Columns) -> Prediction:
        """What these allocations would do."""
        rows_NK = _with_fixed(features(self.shape, columns))
        seconds_N = rows_NK @ _vector(self.coefficients)
        relative_NK = rows_NK / seconds_N[:, None]
        variance_N = np.sum((relative_NK @ self._covariance_KK) * relative_NK, axis=1)
        return Prediction(
            iteration_seconds=seconds_N,
            samples_per_second=columns.workers * self.shape.batch_size / seconds_N,
            relative_error=np.sqrt(np.maximum(variance_N, 0.0) + LEAST_ERROR**2),
        )

    @cached_property
    def _covariance_KK(self) -> Floats:
        # A decision asks for many predictions, and this is the dearest part of one.
        return np.asarray(np.linalg.pinv(self.information_KK, rcond=1e-12, hermitian=True), dtype=np.float64)

    def parts(self, columns: Columns) -> dict[str, Floats]:
        """Seconds of each term of T_iter, by name, shape (N,) each; `fixed` is β."""
        rows_NK = _with_fixed(features(self.shape, columns)) * _vector(self.coefficients)
        return {name: rows_NK[:, k] for k, name in enumerate((*TERMS, "fixed"))}

    def as_prior(self, source: str, strength: float = 1.0) -> Prior:
        """For a similar job that has measured nothing yet."""
        return Prior(coefficients=self.coefficients, source=source, strength=strength)


def _with_fixed(rows_NK: Floats) -> Floats:
    return np.column_stack([rows_NK, np.ones(len(rows_NK))])


def _vector(coefficients: Coefficients) -> Floats:
    return np.array([*(getattr(coefficients, term) for term in TERMS), coefficients.fixed])


def _around(columns: Columns) -> Columns:
    """Allocations in which each count and size is, by itself, a quarter and four times what was measured."""
    rows = [columns]
    for field in ("workers", "parameter_servers", "worker_cores", "parameter_server_cores"):
        for factor in (0.25, 4.0):
            changed = {name: getattr(columns, name) for name in Columns.__dataclass_fields__}
            changed[field] = changed[field] * factor
            rows.append(Columns(**changed))
    return Columns(
        *(np.concatenate([getattr(each, name) for each in rows]) for name in Columns.__dataclass_fields__)
    )  # fmt: skip


def _assumed(shape: ModelShape, profile: Profile) -> Coefficients:
    """Documented shares of the first configuration's step."""
    row_K, seconds = features(shape, profile.columns)[0], float(profile.iteration_seconds[0])
    shares = [share if feature else 0.0 for share, feature in zip(_ASSUMED_SHARES, row_K, strict=True)]
    values = {
        term: share * seconds / feature if feature else 0.0
        for term, share, feature in zip(TERMS, shares, row_K, strict=True)
    }
    return Coefficients(**values, fixed=seconds * (1.0 - sum(shares)))


@dataclass(frozen=True)
class _Equations:
    """Rows over TERMS and the fixed columns, measured seconds, and the weight of each squared log error."""

    rows_RK: Floats
    seconds_R: Floats
    weights_R: Floats

    def __add__(self, other: _Equations) -> _Equations:
        return _Equations(
            np.concatenate([self.rows_RK, other.rows_RK]),
            np.concatenate([self.seconds_R, other.seconds_R]),
            np.concatenate([self.weights_R, other.weights_R]),
        )


def _measured(shape: ModelShape, profile: Profile, split: bool) -> _Equations:
    """One equation per configuration, and one more where its compute part was measured (`split`: β in two columns)."""
    terms_CK = features(shape, profile.columns)
    ones_C1 = np.ones((len(profile), 1))
    total = _Equations(np.hstack([terms_CK, ones_C1]), profile.iteration_seconds, np.ones(len(profile)))
    if not split:
        return total
    known_C = np.isfinite(profile.compute_seconds)
    compute_CK = np.hstack([terms_CK * [1.0, 0.0, 0.0, 0.0], ones_C1, 0.0 * ones_C1])[known_C]
    return _Equations(np.hstack([terms_CK, ones_C1, ones_C1]), total.seconds_R, total.weights_R) + _Equations(
        compute_CK, profile.compute_seconds[known_C], np.full(len(compute_CK), COMPUTE_WEIGHT)
    )


def _pseudo(shape: ModelShape, profile: Profile, prior: Prior, split: bool, weight: float) -> _Equations:
    """What the prior says about allocations around the measured ones, brought to the level of what was measured.

    A similar job's times share their shape; their level differs with the nodes, so one factor is measured.
    """
    known = _with_fixed(features(shape, profile.columns)) @ _vector(prior.coefficients)
    level = float(np.exp(np.mean(np.log(profile.iteration_seconds / known))))
    terms_RK = features(shape, _around(profile.columns))
    seconds_R = level * (_with_fixed(terms_RK) @ _vector(prior.coefficients))
    fixed = np.ones((len(terms_RK), 2 if split else 1))
    return _Equations(np.hstack([terms_RK, fixed]), seconds_R, np.full(len(terms_RK), weight / len(terms_RK)))


def _rank_and_condition(rows_RK: Floats, seconds_R: Floats) -> tuple[int, int, float]:
    """Rank, number of columns in use, and condition of relative rows with columns of length 1."""
    relative_RK = rows_RK / seconds_R[:, None]
    length_K = np.linalg.norm(relative_RK, axis=0)
    used_K = length_K > 0
    values = np.linalg.svd(relative_RK[:, used_K] / length_K[used_K], compute_uv=False)
    rank = int((values > values[0] * 1e-6).sum())
    whole = rank == int(used_K.sum())
    return rank, int(used_K.sum()), float(values[0] / values[-1]) if whole else float("inf")


def fit(
    shape: ModelShape, observations: Sequence[Observation], prior: Prior | None = None, job_id: str = "the job"
) -> ThroughputModel:
    """The model that fits best, in RMSLE, what was measured; α, β ≥ 0.

    A prior counts as `strength` measured configurations at first and as none after FADED_AFTER. Without one, as long
    as measurements leave coefficients open, documented shares decide among the fits that are equally good.

    Raises:
        ScalingError: there is no usable observation, or the prior predicts no time at all.
    """
    profile = summarise(observations)
    require_rows(profile, job_id)
    split = bool(np.isfinite(profile.compute_seconds).any())
    measured = _measured(shape, profile, split)
    totals = _measured(shape, profile, split=False)
    rank, columns, condition = _rank_and_condition(totals.rows_RK, totals.seconds_R)
    identified = rank == columns and condition <= CONDITION_LIMIT
    notes = list(profile.notes)
    if not identified:
        why = f"rank {rank} of {columns}" if rank < columns else f"condition {condition:.3g} above {CONDITION_LIMIT:g}"
        notes.append(f"not identified: {len(profile)} configuration(s) measured, {why}")

    equations, doubted = measured, None
    if prior is not None:
        if not (known := _vector(prior.coefficients)).any() or not np.isfinite(known).all() or (known < 0).any():
            raise ScalingError(
                f"prior of {job_id} from {prior.source}: coefficients {prior.coefficients} are not allowed; allowed: "
                "numbers of at least 0, one of them above; start without a prior"
            )
        weight = prior.strength * max(0.0, 1.0 - len(profile) / FADED_AFTER)
        if weight > 0:
            doubted = _pseudo(shape, profile, prior, split, weight)
            notes.append(f"prior from {prior.source} counts as {weight:.2g} configurations")
    elif not identified:
        assumed = Prior(coefficients=_assumed(shape, profile), source="assumed shares")
        doubted = _pseudo(shape, profile, assumed, split, _TIE_BREAK)
        notes.append("no similar job: shares of the step are assumed where nothing was measured")
    if doubted is not None:
        equations = measured + doubted

    theta_K = fit_relative(equations.rows_RK, equations.seconds_R, equations.weights_R)
    compute_fixed = float(theta_K[4]) if split else None
    theta_K = np.array([*theta_K[:4], theta_K[4:].sum()])
    error = rmsle(totals.rows_RK, totals.seconds_R, theta_K)
    plain_K = fit_plain(totals.rows_RK, totals.seconds_R)
    return ThroughputModel(
        shape=shape,
        coefficients=Coefficients(
            **dict(zip(TERMS, map(float, theta_K[:4]), strict=True)),
            fixed=float(theta_K[4]),
            compute_fixed=compute_fixed,
        ),
        rmsle=error,
        plain_rmsle=rmsle(totals.rows_RK, totals.seconds_R, plain_K),
        configurations=len(profile),
        rank=rank,
        columns=columns,
        condition=condition,
        identified=identified,
        notes=tuple(notes),
        information_KK=_information(totals, theta_K, error, columns, doubted),
    )


def _information(
    totals: _Equations, theta_K: Floats, error: float, columns: int, doubted: _Equations | None
) -> Floats:  # fmt: skip
    """Precision of the coefficients: what was measured, and, as one configuration of PRIOR_ERROR, what is assumed."""
    free = max(1, len(totals.seconds_R) - columns)
    sigma = max(LEAST_ERROR, error * np.sqrt(len(totals.seconds_R) / free))
    relative_RK = totals.rows_RK / (totals.rows_RK @ theta_K)[:, None]
    information_KK = relative_RK.T @ relative_RK / sigma**2
    if doubted is not None:
        rows_RK = np.hstack([doubted.rows_RK[:, :4], np.ones((len(doubted.rows_RK), 1))])
        doubted_RK = rows_RK / doubted.seconds_R[:, None]
        information_KK += doubted_RK.T @ doubted_RK / len(doubted_RK) / PRIOR_ERROR**2
    return information_KK


def fit_job(job: JobProfile) -> ThroughputModel:
    """`fit` of a running job's profile.

    Raises:
        ScalingError: see `fit`.
    """
    return fit(job.shape, job.observations, job.prior, job.job_id)
