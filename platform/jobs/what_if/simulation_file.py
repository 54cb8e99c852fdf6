"""What `elastrec simulate` is given: which jobs, on which cluster, under which policies. One YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from elastrec.platform.simulator.settings import Settings
from elastrec.platform.specs.base import Spec
from elastrec.platform.specs.elasticity import Prices
from elastrec.platform.specs.errors import FieldProblem, SpecError
from elastrec.platform.specs.scaling import ScalingSettings, beside
from elastrec.platform.specs.text.loading import parse_mapping, validate
from elastrec.platform.specs.text.quantities import Bytes, Cores, Seconds

BY_HAND_NAME = "by-hand"
"""Beside the policies: jobs keep what their owners asked for, and the platform does nothing about trouble."""
DEFAULT_POLICIES = (BY_HAND_NAME, "static", "elastic-scheduler", "optimus", "optimus-greedy", "three-stage")
_Share = Annotated[float, Field(ge=0, le=1)]
_SCALING, _HABITS = ScalingSettings(), Settings()


class FromHistory(Spec):
    """A team's own finished jobs, from MLflow."""

    experiment: Annotated[str, Field(min_length=1)] = "elastrec"
    """MLflow experiment; the tracking server is MLFLOW_TRACKING_URI's."""
    most: Annotated[int, Field(ge=1, le=10_000)] = 500
    """The newest jobs, at most so many."""


class MadeUp(Spec):
    """A made-up month of teams that train their models again and again."""

    jobs: Annotated[int, Field(ge=1, le=1_000_000)] = 200
    """How many."""
    models: Annotated[int, Field(ge=1)] = 40
    """Different ones, which are trained again and again."""
    teams: Annotated[int, Field(ge=1)] = 8
    """That own the models."""
    mean_time_between_jobs: Annotated[Seconds, Field(gt=0)] = 43.2
    """Of Poisson arrivals."""
    arrivals: str | None = None
    """CSV file whose arrivals (arrival_seconds or submit_time) are taken instead."""


class Workload(Spec):
    """Exactly one of `jobs`, `history` and `made_up`."""

    jobs: str | None = None
    """CSV file, one line per job, or of a cluster's trace; relative to the YAML file."""
    history: FromHistory | None = None
    """What has run before: what would another policy have made of it?"""
    made_up: MadeUp | None = None
    """No data of your own at hand."""
    time_unit: Annotated[Seconds, Field(gt=0)] = 1.0
    """What the times in CSV files are counted in; `1m` for minutes."""
    skip_wrong_lines: bool = False
    """Leave wrong lines of a CSV file out, and name them, instead of refusing the file."""

    @model_validator(mode="after")
    def _one_source(self) -> Workload:
        given = [name for name in ("jobs", "history", "made_up") if getattr(self, name) is not None]
        if len(given) != 1:
            names = " and ".join(given) or "none of them"
            raise ValueError(f"exactly one of jobs, history and made_up (found {names})")
        return self


class SimulatedCluster(Spec):
    """Equal nodes."""

    nodes: Annotated[int, Field(ge=1, le=100_000)] = 20
    """How many."""
    cores: Annotated[Cores, Field(gt=0)] = 32.0
    """Of one node."""
    memory: Annotated[Bytes, Field(gt=0)] = 192 * 2**30
    """Of one node."""
    node_changes: str | None = None
    """CSV file of nodes that come and go: `seconds` (in `time_unit`) and `nodes`, above 0 or, where they go, below."""


class Trouble(Spec):
    """What goes wrong, and how long things take."""

    start_time: Annotated[Seconds, Field(ge=0)] | None = None
    """Median until a pod trains; default: measured ones with `history`, else 60s."""
    migration_pause: Annotated[Seconds, Field(ge=0)] | None = None
    """Training pauses when servers or a pod's size change; default: measured ones with `history`, else 30s."""
    noise: Annotated[float, Field(ge=0, le=2)] = _HABITS.noise
    """Standard deviation of the logarithm of step times."""
    hours_between_failures: Annotated[float, Field(gt=0)] = _HABITS.hours_between_failures
    """Mean of one pod; 1600 is 1.5 % of the pods per day."""
    stragglers: _Share = 0.07
    """Share of the jobs in which a worker becomes slow."""
    hot_servers: _Share = 0.13
    """Share of the jobs in which a server becomes slow."""


class SimulationFile(Spec):
    """One comparison of policies."""

    workload: Workload
    """The jobs."""
    cluster: SimulatedCluster = SimulatedCluster()
    """Where they run."""
    policies: Annotated[tuple[str, ...], Field(min_length=1)] = DEFAULT_POLICIES
    """Names of registered policies, `FILE.py:CLASS` relative to this file, and `by-hand`; the first one is what the
    others are compared with."""
    changes: Literal["workers", "everything"] = "workers"
    """What plans may change while a job trains; `everything` is servers and sizes of pods too."""
    warm_start: bool = False
    """Jobs start with what similar finished ones ended with; never those of `by-hand`."""
    max_slowdown: Annotated[float, Field(ge=0, lt=1)] = _SCALING.max_slowdown
    """Plans that save may cost a job this share of its speed, as in the file of a real cluster."""
    prices: Prices = _SCALING.prices
    """What resources cost."""
    trouble: Trouble = Trouble()
    """What goes wrong."""
    round_interval: Annotated[Seconds, Field(gt=0)] = _SCALING.round_interval
    """Time between two rounds of the policy."""
    patience_rounds: Annotated[int, Field(ge=1)] = _HABITS.patience_rounds
    """1: every job in every round, as on a real cluster; more: one that had no plan only after up to so many rounds."""
    at_most: Annotated[Seconds, Field(gt=0)] = _HABITS.until_seconds
    """Simulated time after which jobs that still run are reported as unfinished."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Equal seeds give equal results."""

    @model_validator(mode="after")
    def _no_policy_twice(self) -> SimulationFile:
        if len(set(self.policies)) < len(self.policies):
            raise ValueError(f"policies: every one only once (found {', '.join(self.policies)})")
        return self


def load_simulation(file: Path) -> SimulationFile:
    """The comparison in a YAML file; a `.csv` file is a workload on the default cluster.

    Raises:
        SpecError: the file cannot be read, is no YAML, or fields are wrong; all problems are named.
    """
    if file.suffix.lower() == ".csv":
        return SimulationFile(workload=Workload(jobs=str(file.resolve())))
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = FieldProblem("file", f"{str(file)!r} ({error})", "a readable YAML or CSV file in UTF-8", "check it")
        raise SpecError([problem], str(file)) from None
    content = validate(SimulationFile, parse_mapping(text, str(file)), str(file))
    return content.model_copy(update={"policies": tuple(beside(each, file) for each in content.policies)})
