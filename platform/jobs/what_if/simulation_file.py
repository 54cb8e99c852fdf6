"""The YAML file of `elastrec simulate`: jobs, cluster and policies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from elastrec.platform.simulator.settings import Settings
from elastrec.platform.specs.base import Spec
from elastrec.platform.specs.elasticity import Prices
from elastrec.platform.specs.scaling import ScalingSettings, beside
from elastrec.platform.specs.text.loading import parse_mapping, read_text, validate
from elastrec.platform.specs.text.quantities import Bytes, Cores, Seconds

BY_HAND_NAME = "by-hand"
"""In addition to the policies: jobs keep the requested sizes, and the platform does not react to faults."""
DEFAULT_POLICIES = (BY_HAND_NAME, "static", "elastic-scheduler", "optimus", "optimus-greedy", "three-stage")
_Share = Annotated[float, Field(ge=0, le=1)]
_SCALING, _HABITS = ScalingSettings(), Settings()


class FromHistory(Spec):
    """A team's own finished jobs, from MLflow."""

    experiment: Annotated[str, Field(min_length=1)] = "elastrec"
    """MLflow experiment; the tracking server is MLFLOW_TRACKING_URI's."""
    most: Annotated[int, Field(ge=1, le=10_000)] = 500
    """Maximum number of jobs, the newest."""


class MadeUp(Spec):
    """A generated month of teams that train their models again and again."""

    jobs: Annotated[int, Field(ge=1, le=1_000_000)] = 200
    """How many."""
    models: Annotated[int, Field(ge=1)] = 40
    """Number of different models, which are trained again and again."""
    teams: Annotated[int, Field(ge=1)] = 8
    """Number of teams that own the models."""
    mean_time_between_jobs: Annotated[Seconds, Field(gt=0)] = 43.2
    """Mean time of Poisson arrivals."""
    arrivals: str | None = None
    """CSV file whose arrivals (arrival_seconds or submit_time) are used instead."""


class Workload(Spec):
    """Exactly one of `jobs`, `history` and `made_up`."""

    jobs: str | None = None
    """CSV file with one line per job, or the trace of a cluster; relative to the YAML file."""
    history: FromHistory | None = None
    """Past jobs, to be simulated under other policies."""
    made_up: MadeUp | None = None
    """Generated jobs, if you have no data of your own."""
    time_unit: Annotated[Seconds, Field(gt=0)] = 1.0
    """The unit of times in CSV files; `1m` for minutes."""
    skip_wrong_lines: bool = False
    """Whether to skip wrong lines of a CSV file, and name them, instead of refusing the file."""

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
    """CSV file of changes of the number of nodes: `seconds` (in `time_unit`) and `nodes` (below 0 if nodes are
    removed)."""


class Trouble(Spec):
    """Faults and delays."""

    start_time: Annotated[Seconds, Field(ge=0)] | None = None
    """Median time until a pod trains; default: measured times with `history`, otherwise 60s."""
    migration_pause: Annotated[Seconds, Field(ge=0)] | None = None
    """Pause of training when servers or a pod's size change; default: measured times with `history`, otherwise 30s."""
    noise: Annotated[float, Field(ge=0, le=2)] = _HABITS.noise
    """Standard deviation of the logarithm of step times."""
    hours_between_failures: Annotated[float, Field(gt=0)] = _HABITS.hours_between_failures
    """Mean time between failures of a pod, in hours; 1600 is 1.5 % of the pods per day."""
    stragglers: _Share = 0.07
    """Share of the jobs in which a worker becomes slow."""
    hot_servers: _Share = 0.13
    """Share of the jobs in which a server becomes slow."""


class SimulationFile(Spec):
    """One comparison of policies."""

    workload: Workload
    """The jobs."""
    cluster: SimulatedCluster = SimulatedCluster()
    """The cluster on which jobs run."""
    policies: Annotated[tuple[str, ...], Field(min_length=1)] = DEFAULT_POLICIES
    """Names of registered policies, `FILE.py:CLASS` relative to this file, and `by-hand`; the others are compared with
    the first one."""
    changes: Literal["workers", "everything"] = "workers"
    """What plans may change while a job trains; `everything` includes servers and sizes of pods."""
    warm_start: bool = False
    """Whether jobs start with the last sizes of similar finished jobs; never with `by-hand`."""
    max_slowdown: Annotated[float, Field(ge=0, lt=1)] = _SCALING.max_slowdown
    """All saving plans together may cost a job this share of its speed, as in the settings of a real cluster."""
    prices: Prices = _SCALING.prices
    """Prices of resources."""
    trouble: Trouble = Trouble()
    """Faults and delays."""
    round_interval: Annotated[Seconds, Field(gt=0)] = _SCALING.round_interval
    """Time between two rounds of the policy."""
    patience_rounds: Annotated[int, Field(ge=1)] = _HABITS.patience_rounds
    """1: the policy is asked about every job in every round, as on a real cluster; more: about jobs without a plan only
    after up to this number of rounds."""
    at_most: Annotated[Seconds, Field(gt=0)] = _HABITS.until_seconds
    """Simulated time after which running jobs are reported as unfinished."""
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
    text = read_text(file, "a YAML or CSV file in UTF-8")
    content = validate(SimulationFile, parse_mapping(text, str(file)), str(file))
    return content.model_copy(update={"policies": tuple(beside(each, file) for each in content.policies)})
