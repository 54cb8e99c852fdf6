"""Plans of a campaign: which faults it inflicts on which jobs, and when. Pure; a plan depends only on the seed.

Run k of a seed does not depend on the other runs, so that a failed run can be repeated alone.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from elastrec.platform.master.machine.migration import COPYING, HANDING_OVER, STARTING
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.shape import PlacesChange, named_fields

FAULTS_PER_RUN = 5, 9
CHANGES_PER_RUN = 4, 6
"""Of servers, in a run with plans; a fault strikes during each of them."""
MOST_PODS = {Role.PARAMETER_SERVER: 3, Role.WORKER: 4}
"""So many pods plans ask for at most."""
CORES = 1.0, 1.25, 1.5
MEMORY_BYTES = {
    Role.PARAMETER_SERVER: tuple(mebibytes * 2**20 for mebibytes in (512, 640, 768)),
    Role.WORKER: tuple(mebibytes * 2**20 for mebibytes in (1024, 1280, 1536)),
}
"""Sizes that plans ask for: none below that of the job file."""
MEMORY_COPY_BYTES = 2**24
AFTER = "after a change"
STAGES = STARTING, COPYING, HANDING_OVER, AFTER


class Kind(StrEnum):
    """What is done to a process."""

    KILL = "kill -9"
    TERMINATE = "SIGTERM"
    STOP = "stop and continue"
    OUT_OF_MEMORY = "memory limit"
    CUT = "network cut"
    PORT = "port taken"
    JOURNAL = "journal lost"


class Victim(StrEnum):
    """Whose process."""

    WORKER = "worker"
    SERVER = "server"
    MASTER = "master"
    AGENT = "node agent"
    OLD_SERVER = "old server"
    NEW_SERVER = "new server"

    @property
    def is_server(self) -> bool:
        return self in (Victim.SERVER, Victim.OLD_SERVER, Victim.NEW_SERVER)


# Whom each kind can hit.
_PODS_AND_AGENT = (Victim.WORKER, Victim.SERVER, Victim.MASTER, Victim.AGENT)
PLACES = {
    Kind.KILL: _PODS_AND_AGENT,
    # To the node agent it is the order to end all pods.
    Kind.TERMINATE: (Victim.WORKER, Victim.SERVER, Victim.MASTER),
    Kind.STOP: _PODS_AND_AGENT,
    Kind.OUT_OF_MEMORY: (Victim.WORKER, Victim.SERVER, Victim.MASTER),
    Kind.CUT: (Victim.SERVER,),  # from all pods that call it
    Kind.PORT: (Victim.MASTER, Victim.AGENT),  # the others get another port with every process
    Kind.JOURNAL: (Victim.MASTER,),  # killed, and comes back to an empty folder, as on another node
}
_WEIGHTS = {
    Kind.KILL: 8,
    Kind.TERMINATE: 3,
    Kind.STOP: 6,
    Kind.OUT_OF_MEMORY: 3,
    Kind.CUT: 3,
    Kind.PORT: 2,
    Kind.JOURNAL: 2,
}
STAGE_VICTIMS = (Victim.OLD_SERVER, Victim.NEW_SERVER, Victim.WORKER, Victim.MASTER, Victim.AGENT)
STAGE_PLACES = {
    Kind.KILL: STAGE_VICTIMS,
    Kind.TERMINATE: STAGE_VICTIMS[:4],
    Kind.STOP: STAGE_VICTIMS,
    Kind.CUT: (Victim.OLD_SERVER, Victim.NEW_SERVER, Victim.MASTER),
}
"""Whom faults hit that strike while servers change."""
TURNS = tuple(
    (kind, victim, stage)
    for victim in STAGE_VICTIMS
    for kind in (Kind.KILL, Kind.TERMINATE)
    if victim in STAGE_PLACES[kind]
    for stage in STAGES
)
"""What strikes while servers change, one after the other through all runs, so that none is left to chance."""
OTHERS_EVERY = 6
"""So often, it is one of the other kinds instead, with a victim and a stage that are drawn."""
_STAGE_WEIGHTS = {Kind.STOP: 1, Kind.CUT: 1}
_MOVE_SHARE, _AT_ONCE_SHARE = 0.5, 0.3
"""Of plans: those that move a pod, and that another one arrives with."""
# Longer than the jobs' heartbeat timeout; some longer than their lease, too. A killed agent is started again so late.
_SECONDS = {
    Kind.KILL: (0.2, 3.0),
    Kind.TERMINATE: (0.0, 0.0),
    Kind.STOP: (3.5, 9.0),
    Kind.OUT_OF_MEMORY: (0.0, 0.0),
    Kind.CUT: (2.0, 9.0),
    Kind.PORT: (1.0, 4.0),
    Kind.JOURNAL: (0.0, 0.0),
}


@dataclass(frozen=True)
class Shape:
    """The job of a run."""

    mode: str
    staleness: int
    workers: int
    servers: int

    def __str__(self) -> str:
        mode = f"ssp({self.staleness})" if self.mode == "ssp" else self.mode
        return f"{mode}, {self.workers} workers, {self.servers} servers"


# Each mode meets each number of workers and two of servers; each number of workers meets each of servers.
SHAPES = tuple(
    Shape(mode, 2 if mode == "ssp" else 0, workers, (row + workers) % 3 + 1)
    for row, mode in enumerate(("async", "bsp", "ssp"))
    for workers in (2, 3)
)

RUNS_PER_SHAPE = 3
"""In a row: each shape needs one run without faults to be compared with."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        index: of the worker or server.
        delay_seconds: delay after the beginning of its strike.
        seconds: how long a stop, a cut or a taken port lasts, or a killed node agent is away.
    """

    kind: Kind
    victim: Victim
    index: int
    delay_seconds: float
    seconds: float

    def __str__(self) -> str:
        place = f" {self.index}" if self.victim in (Victim.WORKER, Victim.SERVER) else ""
        lasting = f" {self.seconds:.1f} s" if self.seconds else ""
        return f"+{self.delay_seconds:.1f} s {self.kind} {self.victim}{place}{lasting}"


@dataclass(frozen=True)
class Strike:
    """One fault, or two at once or shortly after each other.

    Attributes:
        at: share of the training rows after which it begins; below 0: as soon as the process of the first victim
            exists; 1: when training is over.
    """

    at: float
    faults: tuple[Fault, ...]


@dataclass(frozen=True)
class StageStrike:
    """One fault as soon as a change of servers reaches a stage, or is over (`AFTER`).

    If a change has no such stage, or the stage was missed, the fault is inflicted during the next change of the run.
    """

    stage: str
    fault: Fault

    def __str__(self) -> str:
        return name_of_strike(self.fault.kind, self.fault.victim, self.stage)


def name_of_strike(kind: Kind, victim: Victim, stage: str) -> str:
    """As pages list it."""
    return f"{kind} {victim} {stage if stage == AFTER else f'while {stage}'}"


@dataclass(frozen=True)
class Planned:
    """A request for other pods.

    Attributes:
        at: as for a strike.
        moved: role of the pod to replace, and a number that selects it among the existing ones.
        strike: fault during the change.
    """

    at: float
    change: Mapping[Role, PlacesChange]
    moved: tuple[Role, int] | None = None
    strike: StageStrike | None = None

    def __str__(self) -> str:
        words = [f"{name} {value:g}" for name, value in named_fields(self.change).items()]
        words += [f"a {self.moved[0]} moved"] if self.moved else []
        return ", ".join(words)


@dataclass(frozen=True)
class Run:
    """One job and what happens to it."""

    seed: int
    number: int
    shape: Shape
    strikes: tuple[Strike, ...]
    plans: tuple[Planned, ...] = ()

    @property
    def deltas(self) -> int:
        """How many records in a row hold only what has changed: none in half of the runs."""
        return 3 if self.number % 2 else 0

    @property
    def memory_bytes(self) -> int:
        """Of the node for each server's newest record: in one run of three, with and without deltas."""
        return 0 if self.number % 3 else MEMORY_COPY_BYTES

    @property
    def faults(self) -> list[Fault]:
        return [fault for strike in self.strikes for fault in strike.faults]


def draw_run(seed: int, number: int, kinds: tuple[Kind, ...] = tuple(Kind)) -> Run:
    """Run `number` of a campaign.

    Args:
        kinds: kinds of faults that can be inflicted on this machine.
    """
    dice = random.Random(f"{seed}/{number}")
    shape = SHAPES[number // RUNS_PER_SHAPE % len(SHAPES)]
    left = dice.randint(*FAULTS_PER_RUN)
    strikes: list[Strike] = []
    starved: set[tuple[Victim, int]] = set()
    while left:
        size = min(left, dice.choice((1, 1, 2)))
        # At the same moment, or while the first one's damage is being repaired.
        second = dice.choice((0.0, dice.uniform(0.3, 2.5)))
        faults = []
        for delay in (0.0, second)[:size]:
            faults.append(_draw_fault(dice, shape, delay, kinds, starved))
        moment = dice.random()
        at = -1.0 if moment < 0.1 else 1.0 if moment > 0.93 else dice.uniform(0.02, 0.9)
        strikes.append(Strike(at, tuple(faults)))
        left -= size
    strikes.sort(key=lambda strike: strike.at)
    return Run(seed, number, shape, tuple(strikes), _draw_plans(seed, number, shape, kinds))


def _draw_plans(seed: int, number: int, shape: Shape, kinds: tuple[Kind, ...]) -> tuple[Planned, ...]:
    """Others than the faults' dice: a run has the same faults with and without plans."""
    dice = random.Random(f"{seed}/{number}/plans")
    turn = sum(_changes_of(seed, earlier) for earlier in range(number))
    counts = {Role.WORKER: shape.workers, Role.PARAMETER_SERVER: shape.servers}
    plans = []
    for place, at in enumerate(sorted(dice.uniform(0.02, 0.85) for _ in range(_changes_of(seed, number)))):
        strike = _draw_stage_strike(dice, kinds, turn + place)
        if dice.random() < _AT_ONCE_SHARE:
            plans.append(Planned(at, *_draw_change(dice, counts, dice.choice((Role.PARAMETER_SERVER, Role.WORKER)))))
        # Who strikes while servers start needs servers that do.
        is_moved = strike.stage == STARTING or dice.random() < _MOVE_SHARE
        change, moved = _draw_change(dice, counts, Role.PARAMETER_SERVER, is_moved, changes_servers=True)
        plans.append(Planned(at, change, moved, strike))
    return tuple(plans)


def _changes_of(seed: int, number: int) -> int:
    """How many changes of servers run `number` asks for."""
    return random.Random(f"{seed}/{number}/changes").randint(*CHANGES_PER_RUN) if has_plans(number) else 0


def has_plans(number: int) -> bool:
    """In five runs of six, with and without deltas; the others say what faults alone do."""
    return number % 6 != 5


def _draw_change(
    dice: random.Random,
    counts: dict[Role, int],
    role: Role,
    is_moved: bool | None = None,
    *,
    changes_servers: bool = False,
) -> tuple[dict[Role, PlacesChange], tuple[Role, int] | None]:
    """The change that one plan requests; stores the new numbers of pods in `counts`.

    Args:
        is_moved: whether one of the pods is replaced; None: drawn, too.
        changes_servers: whether servers must be replaced. New sizes alone do not do this if the node has room for them.
    """
    if is_moved is None:
        is_moved = dice.random() < _MOVE_SHARE
    moved = (role, dice.randrange(12)) if is_moved else None
    named = dice.sample(("count", "cores", "memory_bytes"), dice.choice((0, 1, 2) if moved else (1, 1, 2)))
    if changes_servers and not moved:
        named.append("count")
    values: dict[str, int | float] = {}
    if "count" in named:
        counts[role] = dice.choice([count for count in range(1, MOST_PODS[role] + 1) if count != counts[role]])
        values["count"] = counts[role]
    if "cores" in named:
        values["cores"] = dice.choice(CORES)
    if "memory_bytes" in named:
        values["memory_bytes"] = dice.choice(MEMORY_BYTES[role])
    return ({role: msgspec.convert(values, PlacesChange)} if values else {}), moved


def _draw_stage_strike(dice: random.Random, kinds: tuple[Kind, ...], turn: int) -> StageStrike:
    """That of the campaign's change number `turn`."""
    if turn % OTHERS_EVERY == OTHERS_EVERY - 1:
        possible = [kind for kind in _STAGE_WEIGHTS if kind in kinds]
        kind = dice.choices(possible, [_STAGE_WEIGHTS[kind] for kind in possible])[0]
        victim, stage = dice.choice(STAGE_PLACES[kind]), dice.choice(STAGES)
    else:
        kind, victim, stage = TURNS[(turn - turn // OTHERS_EVERY) % len(TURNS)]
    lasts = kind is not Kind.KILL or victim is Victim.AGENT
    seconds = round(dice.uniform(*_SECONDS[kind]), 2) if lasts else 0.0
    return StageStrike(stage, Fault(kind, victim, dice.randrange(2), 0.0, seconds))


def _draw_fault(
    dice: random.Random, shape: Shape, delay: float, kinds: tuple[Kind, ...], starved: set[tuple[Victim, int]]
) -> Fault:
    while True:
        kind = dice.choices(kinds, [_WEIGHTS[kind] for kind in kinds])[0]
        victim = dice.choice(PLACES[kind])
        index = dice.randrange({Victim.WORKER: shape.workers, Victim.SERVER: shape.servers}.get(victim, 1))
        seconds = round(dice.uniform(*_SECONDS[kind]), 2)
        if kind is Kind.OUT_OF_MEMORY:
            # A place that runs out of memory twice is given up for good reason: the limit is too low.
            if (victim, index) in starved:
                continue
            starved.add((victim, index))
        if kind is Kind.KILL and victim is not Victim.AGENT:
            seconds = 0.0  # their node or their master restarts them
        return Fault(kind, victim, index, round(delay, 2), seconds)
