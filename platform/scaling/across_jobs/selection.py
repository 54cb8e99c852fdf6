"""The choice across jobs: at most one plan each, within every capacity (DLRover-RM §4.3, eq. 11–14).

    RE(A) = TG(A) / RC(A)                         eq. 11, undefined for RC ≤ 0
    WG(A) = (priority / (Φ / Ψ_A + ε))^ρ          eq. 14, Φ / Ψ_A seconds left with the plan
    maximise Σ RE·WG  subject to  Σ A ≤ S         eq. 12, 13: a multiple-choice knapsack

The paper has no priority. Outside of the power it would have little effect: with ρ = 2.5 a job with twice the time left
would need priority 5.7 for the same weight. Inside, a priority of 2 has the effect of half of the time left, whatever ρ
is; for |ρ| below 1 it multiplies the weight.

Plans that save are chosen first, because RE is not defined for them and they free capacity for others; with enough free
capacity, a job grows instead. Steps that only explore come last and get the remaining capacity.

Where all plans of a round only add workers, the plans of a job lie on one line, and what each further worker saves is
known. If not all fit, the greedy choice then adds workers where each saves most seconds per core (Optimus, Peng et al.,
EuroSys 2018, §4.1), so that it divides the capacity as `optimus-greedy` does. Eq. 12 has a sum of ratios of whole plans
there, and ρ = 2.5 gives the capacity to jobs about to end, which hardly gain by it: with workers alone, mean completion
times were 0.7 ± 0.7 per cent longer than with greedy Optimus (on seeds of `benchmarks.common.headlines.CHOSEN_ON`).
Where cores move too, eq. 12 prefers cheap plans, and the division by seconds was no better (mean times 0.1 ± 0.2 per
cent longer).

Shape legend: J jobs, I items (a job's plan that costs).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from elastrec.platform.scaling.amounts import Resources, require
from elastrec.platform.scaling.model.columns import Floats
from elastrec.platform.scaling.native_output import native_output_to_stderr
from elastrec.platform.scaling.types import Candidate, CandidateKind, Proposal
from elastrec.platform.specs.errors import ScalingError
from elastrec.platform.specs.scaling import ScalingSettings

STAY = 0
"""Index of the first candidate of every proposal: nothing changes."""


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """The weights of jobs.

    Attributes:
        rho: ρ of eq. 14; above 0 jobs that end soon go first (the paper: 2.5), 0 all are equal, below 0 long ones.
        epsilon_seconds: ε, so that a job about to end has a finite weight. Chosen: far below a round's interval.
    """

    rho: float = ScalingSettings().rho
    epsilon_seconds: float = 1.0

    def __post_init__(self) -> None:
        require(abs(self.rho) <= 10, "weights.rho", self.rho, "-10 to 10", "2.5 is the paper's")
        epsilon = self.epsilon_seconds
        require(0 < epsilon < 1e6, "weights.epsilon_seconds", epsilon, "above 0", "1 is the default")

    @property
    def power(self) -> float:
        """Exponent of the priority, so that a higher priority increases the weight even where long jobs go first."""
        return max(1.0, abs(self.rho))


@dataclass(frozen=True)
class Items:
    """Every plan that costs, of all jobs; arrays of shape (I,).

    Attributes:
        job, candidate: index of the proposal, and of the plan in it.
        value: RE · WG.
        saved_seconds: of training, times the priority, by the speed alone; None unless all of them only add workers.
    """

    job: npt.NDArray[np.intp]
    candidate: npt.NDArray[np.intp]
    value: Floats
    cores: Floats
    memory_bytes: Floats
    saved_seconds: Floats | None = None

    def __len__(self) -> int:
        return len(self.job)

    def take(self, rows: npt.NDArray[np.intp]) -> Items:
        """A selection of rows."""
        saved_I = None if self.saved_seconds is None else self.saved_seconds[rows]
        return Items(
            self.job[rows], self.candidate[rows], self.value[rows], self.cores[rows], self.memory_bytes[rows], saved_I
        )  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """The choice: for each proposal the index of its candidate; STAY: no change.

    Attributes:
        value: Σ RE·WG of the plans that cost.
        left: capacity that remains free.
    """

    chosen: tuple[int, ...]
    value: float
    left: Resources


_PRICE_STEPS, _PRICE_MOVES = 40, (2.0, 0.02)
"""Number of updates of the shadow prices, and the largest power of e of the first and of the last one. Chosen: the last
moves are of 2 %, within the error of a prediction; `benchmarks/scaling/selection.py` compares the choice with the exact
one."""

Knapsack = Callable[[Items, Resources], npt.NDArray[np.intp]]
"""Chooses items, at most one per job, within the resources; returns their indexes."""


def weight(remaining_samples: float, samples_per_second: float, priority: float, weights: Weights) -> float:
    """WG of eq. 14 with the job's priority."""
    seconds = remaining_samples / max(samples_per_second, 1e-300)
    return float(priority**weights.power * (seconds + weights.epsilon_seconds) ** -weights.rho)


def items_of(proposals: Sequence[Proposal], weights: Weights, chosen: Sequence[int] | None = None) -> Items:
    """All plans that cost, in columns.

    Args:
        chosen: index of a plan of each proposal, which its other plans replace: they need only the resources beyond
            that one's, and save the seconds that it loses, too. None: no plan is chosen.
    """
    costly = [
        (j, c, each.gain / each.cost_per_hour, each.samples_per_second, each.needs.cores, each.needs.memory_bytes)
        for j, proposal in enumerate(proposals)
        for c, each in enumerate(proposal.candidates)
        if each.kind is CandidateKind.GROW
    ]
    columns = np.array(costly, dtype=np.float64).reshape(-1, 6).T
    job_I = columns[0].astype(np.intp)
    remaining_J = np.array([proposal.remaining_samples for proposal in proposals], dtype=np.float64)
    priority_J = np.array([proposal.priority for proposal in proposals], dtype=np.float64)
    seconds_I = remaining_J[job_I] / np.maximum(columns[3], 1e-300)
    value_I = columns[2] * priority_J[job_I] ** weights.power * (seconds_I + weights.epsilon_seconds) ** -weights.rho
    chosen = chosen or [STAY] * len(proposals)
    taken = [proposal.candidates[c] for proposal, c in zip(proposals, chosen, strict=True)]
    saved_I = None
    if all(_adds_workers(proposals[j], c) for j, c, *_ in costly):
        before = [
            proposal.samples_per_second if c == STAY else plan.samples_per_second
            for proposal, c, plan in zip(proposals, chosen, taken, strict=True)
        ]
        before_J = np.array(before, dtype=np.float64)
        saved_I = priority_J[job_I] * remaining_J[job_I] * (1.0 / before_J[job_I] - 1.0 / columns[3])
    cores_J = np.array([each.needs.cores for each in taken], dtype=np.float64)
    bytes_J = np.array([each.needs.memory_bytes for each in taken], dtype=np.float64)
    return Items(
        job_I, columns[1].astype(np.intp), value_I, columns[4] - cores_J[job_I], columns[5] - bytes_J[job_I], saved_I
    )


def _adds_workers(proposal: Proposal, candidate: int) -> bool:
    """Whether a plan changes nothing but the number of workers."""
    now, then = proposal.allocation, proposal.candidates[candidate].allocation
    return msgspec.structs.replace(now, workers=then.workers) == then


def _room(free: Resources) -> tuple[float, float]:
    """Cores and bytes that a choice may use, with a margin for rounding, which does not add up with its plans."""
    return max(free.cores, 0.0) + 1e-6, max(free.memory_bytes, 0.0) + 1e-3


def _fill(items: Items, order: npt.NDArray[np.intp], free: Resources) -> npt.NDArray[np.intp]:
    """Takes items in this order as far as they fit, then exchanges them for better ones of the same job."""
    jobs, values = items.job[order].tolist(), items.value[order].tolist()
    cores, memory = items.cores[order].tolist(), items.memory_bytes[order].tolist()
    room_cores, room_bytes = _room(free)
    taken: dict[int, int] = {}
    for place, job in enumerate(jobs):
        if job not in taken and cores[place] <= room_cores and memory[place] <= room_bytes:
            taken[job] = place
            room_cores -= cores[place]
            room_bytes -= memory[place]
    for place in np.argsort(-items.value[order], kind="stable").tolist():
        now = taken.get(jobs[place])
        if now is None or values[place] <= values[now]:
            continue
        if cores[place] - cores[now] <= room_cores and memory[place] - memory[now] <= room_bytes:
            room_cores -= cores[place] - cores[now]
            room_bytes -= memory[place] - memory[now]
            taken[jobs[place]] = place
    return order[np.array(sorted(taken.values()), dtype=np.intp)]


def _shares(items: Items, free: Resources) -> Floats:
    """Each item's share of the free capacity, shape (2, I)."""
    return np.stack(
        [
            np.maximum(items.cores, 0.0) / max(free.cores, 1e-9),
            np.maximum(items.memory_bytes, 0.0) / max(free.memory_bytes, 1e-9),
        ]
    )


def _shadow_prices(items: Items, shares_2I: Floats) -> Floats:
    """The price of all free capacity of each resource, when every job takes its best item at these prices. Shape (2,).

    The price of a resource rises where more is requested than free, and falls otherwise (the dual of eq. 12–13, by
    multiplicative steps, because values of jobs differ by many orders of magnitude).
    """
    order = np.argsort(items.job, kind="stable")
    starts = np.flatnonzero(np.diff(items.job[order], prepend=-1))
    value_I, shares_2I = items.value[order], shares_2I[:, order]
    prices = np.full(2, float(np.maximum.reduceat(value_I, starts).sum()))
    for step in np.geomspace(*_PRICE_MOVES, _PRICE_STEPS):
        worth_I = value_I - prices @ shares_2I
        best_J = np.maximum.reduceat(worth_I, starts)
        takes_I = (worth_I == np.repeat(best_J, np.diff(starts, append=len(order)))) & (worth_I > 0)
        used = shares_2I[:, takes_I].sum(axis=1)
        prices = np.maximum(prices * np.exp(step * np.clip(used - 1.0, -1.0, 1.0)), 1e-300)
    return prices


def _best_of_each_job(items: Items) -> npt.NDArray[np.intp]:
    """The most valuable item of every job, the first of those that are equal."""
    order = np.lexsort((np.arange(len(items)), -items.value, items.job))
    first = np.diff(items.job[order], prepend=-1) > 0
    return np.sort(order[first])


def _by_marginal_gain(
    items: Items, saved_I: Floats, best: npt.NDArray[np.intp], free: Resources
) -> npt.NDArray[np.intp]:
    """One step at a time to the next larger plan of a job, up to its best one: the step that saves most seconds per
    core first; a step that does not fit ends the growth of its job."""
    paths = []
    for item in best.tolist():
        rows = np.flatnonzero((items.job == items.job[item]) & (items.cores <= items.cores[item]))
        paths.append(rows[np.argsort(items.cores[rows], kind="stable")].tolist())
    cores, memory, saved = items.cores.tolist(), items.memory_bytes.tolist(), saved_I.tolist()
    chosen: list[int] = [-1] * len(paths)

    def step(path: int) -> tuple[float, float, float]:
        """(seconds saved, cores, bytes) of the next step of a path."""
        then = paths[path][chosen[path] + 1]
        if chosen[path] < 0:
            return saved[then], cores[then], memory[then]
        now = paths[path][chosen[path]]
        return saved[then] - saved[now], cores[then] - cores[now], memory[then] - memory[now]

    def worth(path: int) -> float:
        seconds, more_cores, _ = step(path)
        return seconds / max(more_cores, 1e-9)

    room_cores, room_bytes = _room(free)
    steps = [(-worth(path), path) for path in range(len(paths))]
    heapq.heapify(steps)
    while steps:
        _, path = heapq.heappop(steps)
        _, more_cores, more_bytes = step(path)
        if more_cores > room_cores or more_bytes > room_bytes:
            continue
        room_cores, room_bytes, chosen[path] = room_cores - more_cores, room_bytes - more_bytes, chosen[path] + 1
        if chosen[path] + 1 < len(paths[path]):
            heapq.heappush(steps, (-worth(path), path))
    return np.array(sorted(path[at] for path, at in zip(paths, chosen, strict=True) if at >= 0), dtype=np.intp)


def greedy(items: Items, free: Resources) -> npt.NDArray[np.intp]:
    """The best of several greedy orders: by value, by value per resource, and by what is left at shadow prices."""
    if not len(items):
        return np.zeros(0, dtype=np.intp)
    shares = _shares(items, free)
    fits = np.flatnonzero((shares <= 1.0 + 1e-9).all(axis=0) & (items.value > 0))
    if not len(fits):
        return fits
    wanted = items.take(fits)
    shares = shares[:, fits]
    best = _best_of_each_job(wanted)
    if (shares[:, best].sum(axis=1) <= 1.0).all():
        # All items fit.
        return fits[best]
    if wanted.saved_seconds is not None:
        return fits[_by_marginal_gain(wanted, wanted.saved_seconds, best, free)]
    paid = _shadow_prices(wanted, shares) @ shares
    scores = [
        wanted.value,
        wanted.value / (shares.max(axis=0) + 1e-12),
        wanted.value - paid,
    ]
    orders = [np.argsort(-score, kind="stable") for score in scores]
    filled = (_fill(wanted, order, free) for order in orders)
    return fits[max(filled, key=lambda rows: float(wanted.value[rows].sum()))]


def exact(items: Items, free: Resources, limit_seconds: float = 30.0) -> npt.NDArray[np.intp]:
    """The best choice there is, by mixed-integer programming (`scipy.optimize.milp`).

    Raises:
        ScalingError: none was found within the time limit.
    """
    if not len(items):
        return np.zeros(0, dtype=np.intp)
    jobs, job_I = np.unique(items.job, return_inverse=True)
    one = csr_array((np.ones(len(items)), (job_I, np.arange(len(items)))), shape=(len(jobs), len(items)))
    # Cores and GiB, and values up to 1: the solver's tolerances are absolute.
    room = np.array([max(free.cores, 0.0), max(free.memory_bytes, 0.0) / 2**30])
    use = csr_array(np.stack([items.cores, items.memory_bytes / 2**30]))
    top = float(items.value.max())
    if top <= 0:
        return np.zeros(0, dtype=np.intp)
    with native_output_to_stderr():
        result = milp(
            c=-items.value / top,
            integrality=np.ones(len(items)),
            bounds=Bounds(0, 1),
            constraints=[LinearConstraint(one, ub=1.0), LinearConstraint(use, ub=room)],
            options={"time_limit": limit_seconds, "mip_rel_gap": 1e-6},
        )
    if result.x is None:
        raise ScalingError(f"exact selection of {len(items)} plans: {result.message}; use the greedy policy")
    return np.flatnonzero(result.x > 0.5)


def _best_saving(proposal: Proposal) -> int:
    """The plan that saves most without loss of speed; if all lose some, the one that saves most. STAY: none."""
    saving = [(c, each) for c, each in enumerate(proposal.candidates) if each.kind is CandidateKind.SAVE]
    if not saving:
        return STAY
    return min(saving, key=lambda pair: (pair[1].gain < 0, pair[1].cost_per_hour, -pair[1].gain))[0]


def choose(
    proposals: Sequence[Proposal], free: Resources, knapsack: Knapsack = greedy, weights: Weights | None = None
) -> Choice:
    """One candidate per job: first every plan that saves, then, with what is free, plans that grow.

    A job that could save grows instead where its growth is worth more than that of others: the rules allow both, and a
    job that saved a little in every round would never reach its best size.

    Args:
        free: capacity that no job holds; while it is negative, no job grows.
    """
    weights = weights or Weights()
    chosen = [STAY] * len(proposals)

    def take(job: int, candidate: int, room: Resources) -> Resources:
        chosen[job] = candidate
        return room - proposals[job].candidates[candidate].needs

    savings = [(j, c) for j, proposal in enumerate(proposals) if (c := _best_saving(proposal)) != STAY]
    for j, c in sorted(savings, key=lambda pair: proposals[pair[0]].candidates[pair[1]].cost_per_hour):
        if proposals[j].candidates[c].needs.fits(free):
            free = take(j, c, free)
    items = items_of(proposals, weights, chosen)
    rows = knapsack(items, free)
    for row in rows:
        j = int(items.job[row])
        # To grow, a job also needs the capacity that its plan that saves would have freed.
        free = take(j, int(items.candidate[row]), free + proposals[j].candidates[chosen[j]].needs)
    for j in (j for j in range(len(proposals)) if chosen[j] == STAY):
        for c, each in enumerate(proposals[j].candidates):
            if each.kind is CandidateKind.EXPLORE and each.needs.fits(free):
                free = take(j, c, free)
                break
    return Choice(tuple(chosen), float(items.value[rows].sum()), free)


def value_of(candidate: Candidate, proposal: Proposal, weights: Weights) -> tuple[float, float | None]:
    """(WG, RE · WG) of one candidate; the second is None where RC ≤ 0."""
    own = weight(proposal.remaining_samples, candidate.samples_per_second, proposal.priority, weights)
    return own, candidate.gain / candidate.cost_per_hour * own if candidate.cost_per_hour > 0 else None
