"""The resource–performance model of DLRover-RM §4.1: fitted to a job's measurements, it predicts other allocations.

    T_iter = α_grad·m/λ_w + α_upd·w/(p·λ_p) + α_sync·(M/p)/(B/w) + α_emb·m·D/p + β        eq. 2–5
    Ψ      = w·m / T_iter                                                                 eq. 1, samples/s

One β: the four of the paper have the constant factor 1, so that only their sum can be known. Where workers measured
their compute time by itself, T_grad = α_grad·m/λ_w + β_compute is fitted beside the total, and β has two known parts.
Where many configurations are known and the sum does not predict them well, `refinement` looks for a form that does.

Shape legend: C configurations, N allocations, R rows (equations), K coefficients in the order of `step_form.COLUMNS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from elastrec.platform.scaling.model.columns import (
    Columns,
    Floats,
    constants_of,
    equation_kernels,
    kernels,
)
from elastrec.platform.scaling.model.profile import Profile, require_rows, summarise
from elastrec.platform.scaling.model.refinement import LEAST_CONFIGURATIONS, Equations, Fitted, choose, solve
from elastrec.platform.scaling.model.step_form import COLUMNS, SERVERS, Form, vector
from elastrec.platform.scaling.types import Coefficients, JobProfile, ModelShape, Observation, Prior
from elastrec.platform.specs.errors import ScalingError
from elastrec.platform.specs.metrics import FADING_SECONDS
from elastrec.platform.specs.text.some import counted

FADED_AFTER = 10
"""Number of measured configurations at which a prior has no weight, except where nothing was measured. Chosen: from
this number on, a job's own measurements choose even the form of its steps (`refinement.LEAST_CONFIGURATIONS`)."""
PRIOR_ERROR = 0.3
"""Relative error of a prior's shape where nothing was measured. Chosen: above `Rules.trusted_error`, so that no large
change is made because of a prior alone."""
LEAST_ERROR = 0.03
"""Relative difference of two runs of one configuration on a shared cluster; no fit has a smaller error."""
PERIOD_ERROR = 0.05
"""Relative standard deviation of the mean step of FADING_SECONDS because other programs on the nodes come and go, in
addition to LEAST_ERROR, which longer measurements do not reduce. Chosen: as `simulator.settings.Settings.noise`."""
CONDITION_LIMIT = 100.0
"""Condition above which noise of 1 % in the times may change coefficients by their own size."""
COMPUTE_WEIGHT = 0.03
"""Weight of a measured compute part against a measured step. Pulls and pushes cost a worker CPU time too, so that the
part is not exactly T_grad. It determines the gradient where steps leave it open, and must not outweigh them. Where they
leave nothing open, it only breaks ties."""
_ASSUMED_SHARES = (0.6, 0.1, 0.1, 0.1)
"""Shares of T_iter by TERMS, the rest is fixed: assumed for a job without a prior, with a weight that only breaks ties.
Chosen: they decide between fits that are equally good."""
_NO_PRIOR = (0.0,) * (len(COLUMNS) + 1)
_TIE_BREAK = 1e-3
"""Weight of assumptions that only break ties, against 1 of a measured configuration. Chosen: it changes a fitted step
by far less than the noise, and is above rounding errors."""
_LIMITS = (
    CONDITION_LIMIT, _TIE_BREAK, COMPUTE_WEIGHT, LEAST_ERROR, PERIOD_ERROR, PRIOR_ERROR, float(FADING_SECONDS),
)  # fmt: skip
"""`equation_kernels.Limits`."""


@dataclass(frozen=True)
class Prediction:
    """For N allocations; arrays are float64 of shape (N,)."""

    columns: Columns
    iteration_seconds: Floats
    model: ThroughputModel

    @property
    def samples_per_second(self) -> Floats:
        """Ψ."""
        return self.columns.workers * self.model.shape.batch_size / self.iteration_seconds

    @cached_property
    def relative_error(self) -> Floats:
        """Relative standard deviation of the two others; computed on first access."""
        return self.model.relative_error(self.columns)


@dataclass(frozen=True)
class ThroughputModel:
    """A fitted model and its reliability.

    Attributes:
        rmsle: of this fit on the measured steps.
        configurations: distinct ones that were measured.
        rank, condition: of the measured rows alone, with columns scaled to one length; the rank is at most `columns`.
        columns: number of coefficients on which this job's steps depend (no dense parameters: no synchronisation).
        identified: the measured rows alone determine every coefficient.
        notes: for users: why it is not identified, which observations were refused, what was assumed.
        form: of the step's time.
        covariance_KK: of the coefficients, K × K, the inverse of Σ x·xᵀ/σ² over relative rows.
    """

    shape: ModelShape
    coefficients: Coefficients
    rmsle: float
    configurations: int
    rank: int
    columns: int
    condition: float
    identified: bool
    notes: tuple[str, ...]
    form: Form
    covariance_KK: Floats

    def predict(self, columns: Columns) -> Prediction:
        """Predictions for these allocations."""
        return Prediction(columns, kernels().all_seconds(columns.table_FN, *self.terms), self)

    def relative_error(self, columns: Columns) -> Floats:
        """Relative standard deviation of the predictions for these allocations, shape (N,)."""
        variance_N = kernels().all_variances(columns.table_FN, *self.terms, self.covariance_KK)
        return np.asarray(np.sqrt(variance_N + LEAST_ERROR**2))

    @cached_property
    def terms(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """`kernels.Constants` and `kernels.Fitted`."""
        known = self.coefficients
        fitted = kernels().Fitted(
            known.gradient, known.update, known.synchronise, known.embedding, known.fan_in, known.fan_out, known.fixed,
            known.overlap,
        )  # fmt: skip
        return constants_of(self.shape, by_request=self.form.by_request), fitted

    def parts(self, columns: Columns) -> dict[str, Floats]:
        """Seconds of each term of T_iter, by name, shape (N,) each; `fixed` is β.

        They add up to T_iter: if parts overlap, each term is weighted by its derivative.
        """
        theta_K = vector(self.coefficients)
        _, slopes_NK = self.form.slopes(self.form.rows(self.shape, columns), theta_K)
        return {name: slopes_NK[:, k] * theta_K[k] for k, name in enumerate(COLUMNS)}


def _prior_terms(prior: Prior | None, shape: ModelShape) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """`kernels.Constants` and `kernels.Fitted` of the prior; without one, zeros in their place."""
    if prior is None:
        return constants_of(shape, by_request=False), _NO_PRIOR
    form = Form.of(prior.coefficients)
    return constants_of(shape, by_request=form.by_request), (*vector(prior.coefficients).tolist(), form.overlap)


def fit(
    shape: ModelShape,
    observations: Sequence[Observation],
    prior: Prior | None = None,
    job_id: str = "the job",
    *,
    refine: bool = True,
) -> ThroughputModel:
    """The model with the smallest RMSLE on the measurements; α, β ≥ 0. A configuration that was measured for longer has
    more weight.

    A prior counts as `strength` measured configurations at first and as none after FADED_AFTER. As long as measurements
    leave coefficients open, it decides among the fits that are equally good; without one, documented shares do. The
    form of such a job's steps is its prior's; later its own measurements choose it (`refinement`).

    Args:
        refine: False: always the paper's sum, for comparisons with a refined form.

    Raises:
        ScalingError: there is no usable observation, or the prior predicts no time at all.
    """
    profile = summarise(observations)
    require_rows(profile, job_id)
    weight, form = 0.0, Form()
    if prior is not None:
        known, form = vector(prior.coefficients), Form.of(prior.coefficients)
        is_valid = np.isfinite(known).all() and (known >= 0).all()
        # A step is 0, too, if all of its parts depend on something that this job does not have: dense parameters.
        if not is_valid or not form.seconds(form.rows(shape, profile.columns), known).all():
            raise ScalingError(
                f"prior of {job_id} from {prior.source}: coefficients {prior.coefficients} are not allowed; allowed: "
                "numbers of at least 0 that give this job a step above 0 s; start without a prior"
            )
        weight = prior.strength * max(0.0, 1.0 - len(profile) / FADED_AFTER)
    believed = tuple(map(tuple, _prior_terms(prior, shape)))
    may_refine = refine and len(profile) >= LEAST_CONFIGURATIONS
    (rank, columns, condition, weight, of_compute), weights_C, summed, known_sum = equation_kernels().plain_fit(
        profile.columns.table_FN, tuple(constants_of(shape, by_request=False)), profile.iteration_seconds,
        profile.compute_seconds, profile.measured_seconds, *believed, prior is not None, _ASSUMED_SHARES, weight,
        may_refine, SERVERS.start, SERVERS.stop, _LIMITS,
    )  # fmt: skip
    identified = rank == columns and condition <= CONDITION_LIMIT
    of_sum = Equations(*summed)

    def equations_of(form: Form) -> Equations:
        if not form.by_request:
            return of_sum
        return Equations(
            *equation_kernels().summed(
                profile.columns.table_FN, tuple(constants_of(shape, by_request=True)), profile.iteration_seconds,
                profile.compute_seconds, weights_C, of_compute, *believed, prior is not None, _ASSUMED_SHARES, weight,
            )
        )  # fmt: skip

    if may_refine and identified:
        fitted = choose(equations_of, len(profile), LEAST_ERROR)
    else:
        form = form if weight > 0 else Form()
        fitted = solve(form, equations_of(form))
    notes = [*profile.notes, *_reliability(profile, prior, rank, columns, identified=identified, weight=weight)]
    if fitted.form.refinements:
        notes.append(_described(fitted.form))
    # A split β is in the last two columns; of a total both are 1.
    count = len(COLUMNS)
    split = len(fitted.theta_K) > count
    theta_K, error, covariance_KK = known_sum if fitted.form == Form() else _known(profile, fitted, columns)
    return ThroughputModel(
        shape=shape,
        coefficients=fitted.form.coefficients(theta_K, float(fitted.theta_K[count - 1]) if split else None),
        rmsle=error,
        configurations=len(profile),
        rank=rank,
        columns=columns,
        condition=condition,
        identified=identified,
        notes=tuple(notes),
        form=fitted.form,
        covariance_KK=covariance_KK,
    )


def _reliability(
    profile: Profile, prior: Prior | None, rank: int, columns: int, *, identified: bool, weight: float
) -> list[str]:
    """Notes for users on what the measurements determine, and on what is assumed instead."""
    notes = []
    if not identified:
        notes.append(
            f"{rank} of {columns} parts of a step can be distinguished by {counted(len(profile), 'measured size')}"
            if rank < columns
            else "the sizes measured are too much alike to distinguish the parts of a step"
        )
    if prior is not None and weight > _TIE_BREAK:
        notes.append(f"prior from {prior.source} counts as {weight:.2g} configurations")
    elif prior is not None and not identified:
        notes.append(f"prior from {prior.source} only where nothing was measured")
    elif not identified:
        notes.append("no similar job: shares of the step are assumed where nothing was measured")
    return notes


def _known(profile: Profile, fitted: Fitted, columns: int) -> tuple[Floats, float, Floats]:
    """The coefficients with one β, the error of the measured steps, and the covariance of a refined form's fit."""
    form, equations = fitted.form, fitted.equations
    found: tuple[Floats, float, Floats] = equation_kernels().known(
        equations.rows_RK, equations.seconds_R, equations.weights_R, fitted.theta_K, profile.compute_seconds,
        SERVERS.start, SERVERS.stop, form.overlap, columns + form.refinements, LEAST_ERROR, PRIOR_ERROR,
    )  # fmt: skip
    return found


def _described(form: Form) -> str:
    overlap = [f"servers work while workers do (overlap {form.overlap:g})"] if form.overlap != 1.0 else []
    requests = ["every request has a price of its own"] if form.by_request else []
    return "the parts of a step do not simply add up: " + ", ".join(overlap + requests)


def fit_job(job: JobProfile) -> ThroughputModel:
    """`fit` of a running job's profile.

    Raises:
        ScalingError: see `fit`.
    """
    return fit(job.shape, job.observations, job.prior, job.job_id)
